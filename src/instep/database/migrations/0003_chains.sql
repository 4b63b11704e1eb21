-- Chains: the output table of one derivation as the source of another, where several rows make one entity.

alter table instep.source add column parts text[] not null default '{}'; -- after the key's columns, what tells one row
