-- A newer fact about a person replaces an older one that it contradicts. The older one is kept, and no longer recalled. If
-- the newer one is forgotten, the older one holds again.
ALTER TABLE loom_person_facts
    ADD COLUMN superseded_by bigint REFERENCES loom_person_facts ON DELETE SET NULL,
    ADD COLUMN compared boolean NOT NULL DEFAULT true; -- with older facts, by a model
ALTER TABLE loom_person_facts ALTER COLUMN compared SET DEFAULT false; -- but for those that were there before
CREATE INDEX loom_person_facts_superseded ON loom_person_facts (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX loom_person_facts_not_compared ON loom_person_facts (id) WHERE NOT compared AND superseded_by IS NULL;

-- Whose run left the Task, so that it can be forgotten with the person: SHA-256 of the tenant and the user, '' for a run
-- that names no user, NULL where an earlier release has stored the Task.
ALTER TABLE loom_memory_tasks ADD COLUMN owner bytea;
CREATE INDEX loom_memory_tasks_owner ON loom_memory_tasks (owner) WHERE owner <> '';
CREATE INDEX loom_memory_tasks_no_owner ON loom_memory_tasks (run_id) WHERE owner IS NULL;
