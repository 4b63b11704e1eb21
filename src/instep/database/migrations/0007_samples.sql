-- How in step everything is, as it was counted last, and as it was over time: what the page and the API show without
-- counting a million entries for each request.
create table instep.sample (
    derivation text primary key references instep.derivation (name) on delete cascade,
    at timestamptz not null,
    status jsonb not null,
    coverage double precision,
    coverage_at timestamptz,            -- when it was counted over all rows; null: never
    coverage_seconds double precision   -- and how long that took
);

-- One row: when a sample was last begun, by whichever process.
create table instep.sampling (
    one boolean primary key default true check (one),
    at timestamptz not null
);

-- One span of time of one derivation. Old ones are merged into longer ones: work is summed, so nothing of it is lost.
create table instep.point (
    derivation text not null references instep.derivation (name) on delete cascade,
    span integer not null,              -- seconds: 15, 300, 3600
    at timestamptz not null,            -- its end for the shortest span, its beginning for the others
    depth bigint not null,              -- the most that waited
    worked bigint not null,             -- entities whose output was made or cleared
    dead bigint not null,
    oldest_wait double precision not null,
    primary key (derivation, span, at)
);

-- How much of a run's work stands in points already. Runs of before are closed.
alter table instep.run add column sampled bigint not null default 0;
alter table instep.run add column closed boolean not null default true;
alter table instep.run alter column closed set default false;
create index run_open on instep.run (id) where not closed;
