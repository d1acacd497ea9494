-- needs Loom 0.4.0: earlier releases don't tell owners apart when they forget a session or replace its facts
-- Equal session names of different owners are different sessions. A memory's place is a session and its owner: after the
-- session, U+001F and the owner's digest, or nothing if the run names neither a tenant nor a user. What all sessions of a
-- tenant see has a place of the same form, without a session. The names are for operators; '' also where an earlier
-- release has stored the row.
ALTER TABLE loom_memory_tasks ADD COLUMN tenant text NOT NULL DEFAULT '', ADD COLUMN user_id text NOT NULL DEFAULT '';
ALTER TABLE loom_memory ADD COLUMN tenant text NOT NULL DEFAULT '', ADD COLUMN user_id text NOT NULL DEFAULT '';
ALTER TABLE loom_scoped_memory ADD COLUMN tenant text NOT NULL DEFAULT '', ADD COLUMN user_id text NOT NULL DEFAULT '';
UPDATE loom_memory SET place = loom_memory.place || E'\x1f' || encode(task.owner, 'hex') FROM loom_memory_tasks AS task
    WHERE task.owner <> '' AND (loom_memory.run_id, loom_memory.ordinal) = (task.run_id, task.ordinal)
        AND loom_memory.place <> '';
UPDATE loom_scoped_memory SET place = loom_scoped_memory.place || E'\x1f' || encode(task.owner, 'hex')
    FROM (SELECT DISTINCT run_id, session_id, owner FROM loom_memory_tasks WHERE owner <> '') AS task
    WHERE (loom_scoped_memory.created_by, loom_scoped_memory.session_id) = (task.run_id, task.session_id)
        AND loom_scoped_memory.scope <> 'global';

DROP INDEX loom_memory_facts, loom_memory_whole, loom_memory_summaries;
CREATE UNIQUE INDEX loom_memory_facts ON loom_memory (session_id, place, fingerprint)
    WHERE layer IN ('L3', 'L4') AND superseded_by IS NULL;
CREATE INDEX loom_memory_whole ON loom_memory (session_id, place, node, created_at DESC, id DESC)
    WHERE layer IN ('L1', 'L2');
CREATE INDEX loom_memory_summaries ON loom_memory (session_id, place, node, created_at DESC, id DESC)
    WHERE layer = 'L3' AND superseded_by IS NULL;
CREATE INDEX loom_memory_owner ON loom_memory (tenant, user_id) WHERE tenant <> '' OR user_id <> '';
