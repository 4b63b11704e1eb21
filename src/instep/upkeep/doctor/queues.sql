-- name: waits
-- Seconds: of the oldest entry that could be claimed now, and since a run was last seen (since it was declared).
select coalesce((select extract(epoch from clock_timestamp() - min(greatest(enqueued_at, not_before)))
        from {outbox} where failed_at is null and (lease_until is null or lease_until < now())
            and (not_before is null or not_before < now())), 0)::float8,
    extract(epoch from clock_timestamp() - coalesce(
        (select max(coalesce(finished_at, seen_at)) from instep.run where derivation = %(derivation)s),
        (select created_at from instep.derivation where name = %(derivation)s)))::float8
