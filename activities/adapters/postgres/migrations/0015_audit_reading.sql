-- The server's clock says up to when histories have been read, and this database's clock when they were read. Before, both
-- were the clock of a worker, which may be wrong: histories are read once more.
ALTER TABLE loom_audit_reading ALTER COLUMN read_until DROP NOT NULL;
UPDATE loom_audit_reading SET read_until = NULL;
ALTER TABLE loom_audit_reading ADD COLUMN swept_at timestamptz;

-- The histories that couldn't be read. They are tried again, and don't keep others from being read.
CREATE TABLE loom_audit_unread (
    server text NOT NULL,
    task_queue text NOT NULL,
    run_id bytea NOT NULL,                          -- in UTF-8, since an id can contain characters that no text can
    execution text NOT NULL,
    PRIMARY KEY (server, task_queue, run_id, execution)
);
