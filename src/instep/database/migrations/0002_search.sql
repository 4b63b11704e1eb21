-- What an index outside PostgreSQL was last told, so that one that is lost, older, or newer than a restored
-- database is noticed: the index carries an epoch in its own commit, and it must be one of these two.
-- Written and committed synchronously before the index is.
create table instep.index_epoch (
    derivation text not null,
    target bigint not null,             -- instep.target's id
    epoch bigint not null,              -- before the write in hand
    intended bigint not null,           -- after it
    primary key (derivation, target)
);
