-- Queries go before bulk work, across processes and behind a pooler: whoever asks a model server for a query says so
-- here, and bulk work that uses the same server sends little at a time until the row expires. Judged by the
-- database's clock.

create table instep.interactive (
    server text primary key,            -- its address, without what may be secret
    expires_at timestamptz not null
);
