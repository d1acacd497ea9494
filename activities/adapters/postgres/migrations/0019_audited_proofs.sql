-- The proofs of approvals. Rows from before have none, and their hashes don't cover the column.
ALTER TABLE loom_audit ADD COLUMN proof text NOT NULL DEFAULT '';
