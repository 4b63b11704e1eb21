-- Keys of the HTTP API. What opens a door is kept as a hash alone.
create table instep.api_key (
    id text primary key,                -- shown in lists; opens nothing
    hash bytea not null unique,         -- sha256 of the key
    name text not null default '',      -- whose it is, in the words of who made it
    role text not null check (role in ('reader', 'member', 'operator', 'administrator')),
    tables text[],                      -- the sources that it is limited to; null: all
    created_at timestamptz not null default now(),
    used_at timestamptz,
    revoked_at timestamptz
);
