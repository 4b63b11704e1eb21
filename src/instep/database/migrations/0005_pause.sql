-- The switch that keeps workers from starting waves: of everything, of a source, or of one derivation.
create table instep.pause (
    scope text primary key,             -- '' for everything, else a source's or a derivation's name
    reason text not null,
    since timestamptz not null default now(),
    until timestamptz                   -- passed: not paused any more, by the database's clock
);
