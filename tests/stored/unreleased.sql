-- Loom 0.4.0, schema 19
-- tables
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
SELECT pg_advisory_xact_lock(1282371437)
-- next statement
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
CREATE TABLE IF NOT EXISTS loom_payloads (
    id bytea PRIMARY KEY,
    data bytea NOT NULL,
    size int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE loom_payloads ADD COLUMN IF NOT EXISTS owner text NOT NULL DEFAULT '';
CREATE TABLE IF NOT EXISTS loom_payload_owners (
    payload bytea NOT NULL,
    owner text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (payload, owner)
);
CREATE INDEX IF NOT EXISTS loom_payload_owners_owner ON loom_payload_owners (owner);
INSERT INTO loom_payload_owners (payload, owner) SELECT id, '' FROM loom_payloads ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION loom_payload_owned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1282371437); -- LOCK
    INSERT INTO loom_payload_owners (payload, owner) VALUES (NEW.id, NEW.owner)
    ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now();
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER loom_payload_owned
    BEFORE INSERT ON loom_payloads FOR EACH ROW EXECUTE FUNCTION loom_payload_owned();
-- next statement
ALTER TABLE loom_payload_owners
    ADD COLUMN IF NOT EXISTS tenant text DEFAULT '',
    ADD COLUMN IF NOT EXISTS offered boolean NOT NULL DEFAULT true;
ALTER TABLE loom_payload_owners ALTER COLUMN tenant DROP DEFAULT, ALTER COLUMN offered SET DEFAULT false;
-- stored
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
VALUES ('\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea, 'run/finished', 'run', 1, '23735a6a57d14c43aed6135ed5580ba5'::uuid, now() + '0:00:02.500000'::interval, pg_backend_pid())
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim, alive_until, session) = (
    SELECT excluded.attempt, held.attempt, excluded.claim, excluded.alive_until, excluded.session
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim, held.alive_until, held.session
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
UPDATE loom_effects SET result = '{"content":"paid","status":"success","error_type":null,"stage_ms":[],"resend":false,"parts":[],"artifact":"","length":0,"session":"","needs":null,"unproven":""}', ended_at = now() WHERE id = '\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea AND attempt = 1 AND result IS NULL
-- next statement
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
VALUES ('\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93'::bytea, 'run/lost', 'run', 1, '5b1bdd50f38b411ab418c1b77a40ec58'::uuid, now() + '0:00:02.500000'::interval, pg_backend_pid())
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim, alive_until, session) = (
    SELECT excluded.attempt, held.attempt, excluded.claim, excluded.alive_until, excluded.session
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim, held.alive_until, held.session
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
SELECT id, key, run_id, attempt, claim, now() + '0:00:02.500000'::interval, pg_backend_pid()
FROM unnest( E'{"\\\\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93"}'::bytea[]::bytea[], '{run/lost}'::text[], '{run}'::text[], '{1}'::int2[]::int[], '{c6a67d31ac8941969758c1cdff6f652d}'::uuid[]::uuid[])
    AS renewed (id, key, run_id, attempt, claim)
CROSS JOIN set_config('synchronous_commit', 'off', true) -- a lease must not wait for the disk, nor survive a crash
ORDER BY id
ON CONFLICT (id) DO UPDATE
SET attempt = excluded.attempt, alive_until = excluded.alive_until, session = excluded.session
WHERE held.attempt <= excluded.attempt
RETURNING id
-- next statement
UPDATE loom_effects SET alive_until = NULL WHERE id = '\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93'::bytea AND attempt = 1
-- next statement
INSERT INTO loom_artifacts (run_id, artifact, compressed, data, size) VALUES ('run', 'tides', true, '\x7801edd4c109c0300805d07ba770b584a6a4500804bb7f9309bac0bb88f86fa22f7b8bbccf554a7d5a8c2b724d7a9975bcf3d8bdd436dc865f2003094948421292908424242109494842129290842424210949f827e1073e9c4f09'::bytea, 6000) ON CONFLICT DO NOTHING
-- next statement
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
INSERT INTO loom_payloads (id, data, size, owner) VALUES ('\xd0153d2b6fe26df3d21b4754b28e74997abfa341a37ab3250b421eb98d527f4a'::bytea, '\x0a160a08656e636f64696e67120a6a736f6e2f706c61696e1210226120636f6e766572736174696f6e22'::bytea, 42, 'run') ON CONFLICT DO NOTHING
-- next statement
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
INSERT INTO loom_payloads (id, data, size, owner) VALUES ('\x92b2fa58028958317e408bd84ecfa70f5ee35b121991dbc232c49d166353708b'::bytea, '\x612070696374757265'::bytea, 9, 'run') ON CONFLICT DO NOTHING
-- next statement
INSERT INTO loom_payload_owners AS known (payload, owner, tenant, offered)
VALUES ('\x92b2fa58028958317e408bd84ecfa70f5ee35b121991dbc232c49d166353708b'::bytea, 'run', 'acme', 'acme'::text IS NULL)
ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now(), tenant = coalesce(excluded.tenant, known.tenant),
    offered = known.offered OR excluded.offered
-- next statement
INSERT INTO loom_stored_runs (server, run_id, tree, parent, seen)
VALUES ('server', 'run', 'run', '', true) ON CONFLICT DO NOTHING
-- next statement
INSERT INTO loom_used_starts (start, run_id, execution) VALUES ('start', 'run', 'execution')
ON CONFLICT (start) DO UPDATE SET run_id = loom_used_starts.run_id -- so that the statement returns the row
RETURNING execution
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,run,run-ann,trip}'::text[]) AS session
-- next statement
SELECT id FROM loom_memory_tasks WHERE id = ANY( E'{"\\\\x2dc06ff896ba86bedee4f75435eb8694f56148d46e6f9328e5ed6303ee49d182","\\\\x3f51fc88fd45463934c0f749e6faeef7f0dc85a21eeb70dc72fafb6fe400a9dc","\\\\xbe0e411fa775bc8c64eb9fa1adf23ec626855dca2255cc2247a64ee1b89b7fbd","\\\\x56afb8b520c6e848976a4ddfeeb90ecef9c73a3acd9c4083b4f5e05cc86c4176"}'::bytea[])
-- next statement
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\xf50a3c40f7fe4574d60883ccfda82d161af9c354a19b6382cf6a7cdb277f0252","\\\\x1a1591b768821b706e716c65f290c7a81853a43245d9c0b4cf03f400cc50e022","\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\xf50a3c40f7fe4574d60883ccfda82d161af9c354a19b6382cf6a7cdb277f0252","\\\\x1a1591b768821b706e716c65f290c7a81853a43245d9c0b4cf03f400cc50e022","\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\xf50a3c40f7fe4574d60883ccfda82d161af9c354a19b6382cf6a7cdb277f0252","\\\\x1a1591b768821b706e716c65f290c7a81853a43245d9c0b4cf03f400cc50e022","\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x6306409f435ea7814ea02eaa798b4f35592a05dd70e6abc9c16811af36fd120e","\\\\x075bea4dc026040f50b301ef973d6bc798fbdbb85c6cc6d7e7fcabfd84f84e6e"}'::bytea[])
UNION ALL SELECT owner, until FROM loom_person_facts_forgotten WHERE owner = ANY( E'{"\\\\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09"}'::bytea[]) AND fact = ''
-- next statement
SELECT run, coalesce((SELECT ordinal FROM loom_memory_tasks WHERE run_id = run ORDER BY ordinal DESC LIMIT 1), 0)
FROM unnest('{run,run-ann}'::text[]) AS run
-- next statement
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset( E'[{"id": "\\\\x2dc06ff896ba86bedee4f75435eb8694f56148d46e6f9328e5ed6303ee49d182", "whole_task_id": "run/n1/node.message", "task_id": "run/n1/node.message", "run_id": "run", "session_id": "trip", "tenant": "", "user_id": "", "turn": 0, "ordinal": 1, "action": "node.message", "created_at": "2026-11-01T12:01:00+00:00", "owner": "\\\\x", "place": "trip", "scope": "local", "root_run_id": "run", "parent_task_id": null, "node": "default", "status": "completed", "layer": "L2", "importance": 0.9, "content": "The harbour opens at six in the morning, and closes at night when the last ship of the day has come in.", "fingerprint": "\\\\xec8206aba8cc3043d667475c2f0aead9", "task": "{\\"task_id\\":\\"run/n1/node.message\\",\\"run_id\\":\\"run\\",\\"root_run_id\\":\\"run\\",\\"session_id\\":\\"trip\\",\\"action\\":\\"node.message\\",\\"created_at\\":\\"2026-11-01T12:01:00Z\\",\\"source_agent\\":\\"default\\",\\"parameters\\":{\\"text\\":\\"The harbour opens at six in the morning, and closes at night when the last ship of the day has come in.\\"},\\"metadata\\":{\\"importance\\":0.9}}", "lexemes": "''the'':1,7,14,18 ''harbour'':2 ''open'':3 ''at'':4,11 ''six'':5 ''in'':6,22 ''morning'':8 ''and'':9 ''close'':10 ''night'':12 ''when'':13 ''last'':15 ''ship'':16 ''of'':17 ''day'':19 ''has'':20 ''come'':21", "length": 22, "telling": true, "told_form": 1}, {"id": "\\\\x3f51fc88fd45463934c0f749e6faeef7f0dc85a21eeb70dc72fafb6fe400a9dc", "whole_task_id": "run/n2/node.message", "task_id": "run/n2/node.message", "run_id": "run", "session_id": "trip", "tenant": "", "user_id": "", "turn": 0, "ordinal": 2, "action": "node.message", "created_at": "2026-11-01T12:02:00+00:00", "owner": "\\\\x", "place": "trip", "scope": "local", "root_run_id": "run", "parent_task_id": null, "node": "default", "status": "completed", "layer": "L2", "importance": 0.9, "content": "The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine.", "fingerprint": "\\\\xd6de661a3bdc8f88028c6e19e1b01d1a", "task": "{\\"task_id\\":\\"run/n2/node.message\\",\\"run_id\\":\\"run\\",\\"root_run_id\\":\\"run\\",\\"session_id\\":\\"trip\\",\\"action\\":\\"node.message\\",\\"created_at\\":\\"2026-11-01T12:02:00Z\\",\\"source_agent\\":\\"default\\",\\"parameters\\":{\\"text\\":\\"The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine.\\"},\\"metadata\\":{\\"importance\\":0.9}}", "lexemes": "''the'':1,4,16 ''bakery'':2 ''behind'':3 ''market'':5 ''open'':6 ''at'':7,19 ''seven'':8 ''and'':9 ''its'':10 ''bread'':11 ''is'':12 ''sold'':13 ''out'':14 ''before'':15 ''ferry'':17 ''leave'':18 ''nine'':20", "length": 20, "telling": true, "told_form": 1}, {"id": "\\\\xbe0e411fa775bc8c64eb9fa1adf23ec626855dca2255cc2247a64ee1b89b7fbd", "whole_task_id": "run/n3/node.message", "task_id": "run/n3/node.message", "run_id": "run", "session_id": "trip", "tenant": "", "user_id": "", "turn": 0, "ordinal": 3, "action": "node.message", "created_at": "2026-11-01T12:03:00+00:00", "owner": "\\\\x", "place": "", "scope": "global", "root_run_id": "run", "parent_task_id": null, "node": "default", "status": "completed", "layer": "L2", "importance": 0.9, "content": "Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them.", "fingerprint": "\\\\x17697a70a0488fada6c38b1301d5615f", "task": "{\\"task_id\\":\\"run/n3/node.message\\",\\"run_id\\":\\"run\\",\\"root_run_id\\":\\"run\\",\\"session_id\\":\\"trip\\",\\"action\\":\\"node.message\\",\\"created_at\\":\\"2026-11-01T12:03:00Z\\",\\"source_agent\\":\\"default\\",\\"parameters\\":{\\"text\\":\\"Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them.\\"},\\"metadata\\":{\\"importance\\":0.9,\\"scope\\":\\"global\\"}}", "lexemes": "''every'':1 ''captain'':2 ''of'':3,11 ''the'':4,7,12 ''island'':5 ''know'':6 ''rock'':8 ''in'':9 ''front'':10 ''harbour'':13 ''but'':14 ''no'':15 ''chart'':16 ''that'':17 ''we'':18 ''have'':19 ''show'':20 ''them'':21", "length": 21, "telling": true, "told_form": 1}, {"id": "\\\\x56afb8b520c6e848976a4ddfeeb90ecef9c73a3acd9c4083b4f5e05cc86c4176", "whole_task_id": "run-ann/n4/node.message", "task_id": "run-ann/n4/node.message", "run_id": "run-ann", "session_id": "trip", "tenant": "acme", "user_id": "ann", "turn": 0, "ordinal": 1, "action": "node.message", "created_at": "2026-11-01T12:04:00+00:00", "owner": "\\\\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09", "place": "trip\\u001ff48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09", "scope": "local", "root_run_id": "run-ann", "parent_task_id": null, "node": "default", "status": "completed", "layer": "L2", "importance": 0.9, "content": "My boat lies in the harbour.", "fingerprint": "\\\\x2fb1554f631638a052838fd50c91ac3a", "task": "{\\"task_id\\":\\"run-ann/n4/node.message\\",\\"run_id\\":\\"run-ann\\",\\"root_run_id\\":\\"run-ann\\",\\"session_id\\":\\"trip\\",\\"action\\":\\"node.message\\",\\"created_at\\":\\"2026-11-01T12:04:00Z\\",\\"source_agent\\":\\"default\\",\\"parameters\\":{\\"text\\":\\"My boat lies in the harbour.\\"},\\"metadata\\":{\\"importance\\":0.9,\\"tenant\\":\\"acme\\",\\"user_id\\":\\"ann\\"}}", "lexemes": "''my'':1 ''boat'':2 ''ly'':3 ''in'':4 ''the'':5 ''harbour'':6", "length": 6, "telling": true, "told_form": 1}]'::json) AS given (
        id bytea, whole_task_id text, run_id text, session_id text, tenant text, user_id text, turn int, ordinal int,
        action text, created_at timestamptz, owner bytea, place text, root_run_id text, task_id text,
        parent_task_id text, node text, status text, layer text, scope text, importance real, content text,
        fingerprint bytea, task text, lexemes tsvector, length int, telling boolean, told_form smallint
    )
),
recorded AS (
    INSERT INTO loom_memory_tasks (
        id, task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner
    )
    SELECT id, whole_task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner FROM given
)
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, told_form, created_at, tenant, user_id
)
SELECT place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, task::json, lexemes, length, telling, told_form, created_at, tenant,
    user_id
FROM given
-- next statement
WITH important AS (
    SELECT id, run_id, content, task, created_at, summarised_at,
        row_number() OVER (PARTITION BY session_id, place, node ORDER BY created_at DESC, id DESC) AS rank,
        user_id <> '' AND action IN ('node.start', 'node.message') AS is_said
    FROM loom_memory WHERE layer = 'L2'
),
waiting AS (
    SELECT *, rank > 50 OR created_at < now() - '1 day 0:00:00'::interval OR EXISTS (
        SELECT FROM loom_memory_tasks AS ended
        WHERE ended.run_id = important.run_id AND ended.action IN ('node.complete', 'node.error')
    ) AS is_due
    FROM important WHERE summarised_at IS NULL
),
together AS (
    SELECT *, bool_or(is_due) OVER texts OR count(*) OVER texts >= 10 AS are_due
    FROM waiting WINDOW texts AS (PARTITION BY run_id, is_said)
)
SELECT id, content, task FROM together WHERE is_due OR is_said AND are_due ORDER BY id LIMIT 10
-- next statement
SELECT session_id, content FROM loom_memory WHERE id = 1
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 1 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 5
WHERE (session_id, place) = (SELECT session_id, place FROM loom_memory WHERE id = 1)
    AND fingerprint = '\x75d33a82907703f5673e09cc4a68cb77'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at,
    tenant, user_id
)
SELECT 5, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: The harbour opens at six in the morning, and closes at night when the last ship of the day has come in.', '\x75d33a82907703f5673e09cc4a68cb77'::bytea, '''fact'':1 ''the'':2,8,15,19 ''harbour'':3 ''open'':4 ''at'':5,12 ''six'':6 ''in'':7,23 ''morning'':9 ''and'':10 ''close'':11 ''night'':13 ''when'':14 ''last'':16 ''ship'':17 ''of'':18 ''day'':20 ''has'':21 ''come'':22'::tsvector, 23, true,
    1, created_at, tenant, user_id
FROM loom_memory WHERE id = 1
-- next statement
SELECT session_id, content FROM loom_memory WHERE id = 2
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 2 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 6
WHERE (session_id, place) = (SELECT session_id, place FROM loom_memory WHERE id = 2)
    AND fingerprint = '\x6664555b3d450bec4df205d0f8151bde'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at,
    tenant, user_id
)
SELECT 6, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine.', '\x6664555b3d450bec4df205d0f8151bde'::bytea, '''fact'':1 ''the'':2,5,17 ''bakery'':3 ''behind'':4 ''market'':6 ''open'':7 ''at'':8,20 ''seven'':9 ''and'':10 ''its'':11 ''bread'':12 ''is'':13 ''sold'':14 ''out'':15 ''before'':16 ''ferry'':18 ''leave'':19 ''nine'':21'::tsvector, 21, true,
    1, created_at, tenant, user_id
FROM loom_memory WHERE id = 2
-- next statement
SELECT session_id, content FROM loom_memory WHERE id = 3
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 3 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 7
WHERE (session_id, place) = (SELECT session_id, place FROM loom_memory WHERE id = 3)
    AND fingerprint = '\x27c37d6cfcd7f68926903637ef286f47'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at,
    tenant, user_id
)
SELECT 7, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them.', '\x27c37d6cfcd7f68926903637ef286f47'::bytea, '''fact'':1 ''every'':2 ''captain'':3 ''of'':4,12 ''the'':5,8,13 ''island'':6 ''know'':7 ''rock'':9 ''in'':10 ''front'':11 ''harbour'':14 ''but'':15 ''no'':16 ''chart'':17 ''that'':18 ''we'':19 ''have'':20 ''show'':21 ''them'':22'::tsvector, 22, true,
    1, created_at, tenant, user_id
FROM loom_memory WHERE id = 3
-- next statement
SELECT session_id, content FROM loom_memory WHERE id = 4
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 4 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 8
WHERE (session_id, place) = (SELECT session_id, place FROM loom_memory WHERE id = 4)
    AND fingerprint = '\x6a636da49adba4b48e3479b649f2c9f4'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at,
    tenant, user_id
)
SELECT 8, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: My boat lies in the harbour.', '\x6a636da49adba4b48e3479b649f2c9f4'::bytea, '''fact'':1 ''my'':2 ''boat'':3 ''ly'':4 ''in'':5 ''the'':6 ''harbour'':7'::tsvector, 7, true,
    1, created_at, tenant, user_id
FROM loom_memory WHERE id = 4
-- next statement
SELECT id, content, false FROM loom_memory
WHERE model IS NULL AND telling AND layer <> 'L1' AND superseded_by IS NULL ORDER BY id LIMIT 10
-- next statement
SELECT due.id, other.content, embedding::real[] FROM loom_memory AS due
JOIN loom_memory AS other ON other.task_id = due.task_id AND other.id <> due.id
JOIN loom_memory_vectors AS vectors ON vectors.id = other.id
WHERE due.id = ANY('{1,2,3,4,5,6,7,8}'::int2[]) AND (other.model, other.dimension) = ('directions', 2)
    AND other.told_form = 1
-- next statement
SELECT DISTINCT session_id FROM loom_memory WHERE id = ANY('{1,2,3,4,5,6,7,8}'::int2[])
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET told_form = 1, telling = false, sketch = NULL, model = NULL, dimension = NULL WHERE id = ANY('{}')
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 1 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 2 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[0.0,1.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 3 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 4 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 5 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 6 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[0.0,1.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 7 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2,
        telling = true, told_form = 1
    WHERE id = 8 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 1 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 2 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 3 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 4 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 5 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 6 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 7 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = 8 AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT 20
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= 0.98
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{other,run}'::text[]) AS session
-- next statement
SELECT id FROM loom_memory_tasks WHERE id = ANY( E'{"\\\\x49cba954f950991852c3b69a8ce8fe830090272eceb1d270725e8b3b2bd46f83"}'::bytea[])
-- next statement
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\xd9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa","\\\\xf703830190b2195a5f306ed24f7af6742a1743c00524490adb5ab461db1225e4","\\\\xb93882c37f127e111a0ff89d55e79b4ba6957c01bd33311d5d9c3f5ef5baca0d"}'::bytea[])
UNION ALL SELECT owner, until FROM loom_person_facts_forgotten WHERE owner = ANY('{}') AND fact = ''
-- next statement
SELECT run, coalesce((SELECT ordinal FROM loom_memory_tasks WHERE run_id = run ORDER BY ordinal DESC LIMIT 1), 0)
FROM unnest('{run}'::text[]) AS run
-- next statement
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset( E'[{"id": "\\\\x49cba954f950991852c3b69a8ce8fe830090272eceb1d270725e8b3b2bd46f83", "whole_task_id": "run/n5/node.message", "task_id": "run/n5/node.message", "run_id": "run", "session_id": "other", "tenant": "", "user_id": "", "turn": 0, "ordinal": 4, "action": "node.message", "created_at": "2026-11-01T12:05:00+00:00", "owner": "\\\\x", "place": "other", "scope": "local", "root_run_id": "run", "parent_task_id": null, "node": "default", "status": "completed", "layer": "L2", "importance": 0.9, "content": "to be forgotten", "fingerprint": "\\\\x0ffd1c100f48fb71f1a4b993ea4fc3fc", "task": "{\\"task_id\\":\\"run/n5/node.message\\",\\"run_id\\":\\"run\\",\\"root_run_id\\":\\"run\\",\\"session_id\\":\\"other\\",\\"action\\":\\"node.message\\",\\"created_at\\":\\"2026-11-01T12:05:00Z\\",\\"source_agent\\":\\"default\\",\\"parameters\\":{\\"text\\":\\"to be forgotten\\"},\\"metadata\\":{\\"importance\\":0.9}}", "lexemes": "''to'':1 ''be'':2 ''forgotten'':3", "length": 3, "telling": true, "told_form": 1}]'::json) AS given (
        id bytea, whole_task_id text, run_id text, session_id text, tenant text, user_id text, turn int, ordinal int,
        action text, created_at timestamptz, owner bytea, place text, root_run_id text, task_id text,
        parent_task_id text, node text, status text, layer text, scope text, importance real, content text,
        fingerprint bytea, task text, lexemes tsvector, length int, telling boolean, told_form smallint
    )
),
recorded AS (
    INSERT INTO loom_memory_tasks (
        id, task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner
    )
    SELECT id, whole_task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner FROM given
)
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, told_form, created_at, tenant, user_id
)
SELECT place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, task::json, lexemes, length, telling, told_form, created_at, tenant,
    user_id
FROM given
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{other}'::text[]) AS session
-- next statement
INSERT INTO loom_memory_forgotten (session, until)
SELECT '\xd9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa'::bytea, greatest(clock_timestamp(), max(created_at)) FROM loom_memory_tasks WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL)
ON CONFLICT (session) DO UPDATE SET until = greatest(excluded.until, loom_memory_forgotten.until)
-- next statement
SELECT run_id, bool_or(action IN ('node.complete', 'node.error')) FROM loom_memory_tasks AS one
WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL) AND NOT EXISTS (
    SELECT FROM loom_memory_tasks AS other
    WHERE other.run_id = one.run_id AND NOT (other.session_id = 'other'
        AND (NULL::text IS NULL OR other.tenant = NULL)
        AND (NULL::text IS NULL OR other.user_id = NULL))
)
GROUP BY run_id ORDER BY run_id
-- next statement
DELETE FROM loom_memory WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL) RETURNING id
-- next statement
UPDATE loom_memory SET superseded_by = NULL, valid_to = NULL WHERE superseded_by = ANY('{9}'::int2[])
-- next statement
DELETE FROM loom_scoped_memory WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL)
-- next statement
DELETE FROM loom_person_facts WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL) AND source <> 'added'
-- next statement
DELETE FROM loom_memory_tasks WHERE session_id = 'other' AND (NULL::text IS NULL OR tenant = NULL) AND (NULL::text IS NULL OR user_id = NULL)
-- next statement
DELETE FROM loom_artifacts WHERE run_id = ANY('{}')
-- next statement
DELETE FROM loom_effects WHERE run_id = ANY('{}')
-- next statement
SELECT count(*) FROM loom_effects WHERE run_id = ANY('{}')
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant, user_id, updated_at FROM loom_scoped_memory
WHERE place = ANY('{tree:run}') AND ('plan'::text IS NULL OR id = 'plan') ORDER BY place, id, version DESC
-- next statement
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with,
    tenant, user_id
) VALUES (
    'tree:run', 'plan', 1, 'sail at dawn (shared)', 'shared', '{run}', 'trip', 'run', 'run',
    NULL, NULL, '', ''
)
ON CONFLICT DO NOTHING RETURNING updated_at
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant, user_id, updated_at FROM loom_scoped_memory
WHERE place = ANY('{local:runf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09}') AND ('plan'::text IS NULL OR id = 'plan') ORDER BY place, id, version DESC
-- next statement
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with,
    tenant, user_id
) VALUES (
    'local:runf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09', 'plan', 1, 'sail at dawn (local)', 'local', '{run}', 'trip', 'run', 'run',
    NULL, NULL, 'acme', 'ann'
)
ON CONFLICT DO NOTHING RETURNING updated_at
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant, user_id, updated_at FROM loom_scoped_memory
WHERE place = ANY('{globalc32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}') AND ('plan'::text IS NULL OR id = 'plan') ORDER BY place, id, version DESC
-- next statement
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with,
    tenant, user_id
) VALUES (
    'globalc32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd', 'plan', 1, 'sail at dawn (global)', 'global', '{run}', 'trip', 'run', 'run',
    NULL, NULL, 'acme', 'ann'
)
ON CONFLICT DO NOTHING RETURNING updated_at
-- next statement
INSERT INTO loom_knowledge (name, folder) VALUES ('port', '/srv/port')
ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, updated_at = now()
-- next statement
SELECT FROM loom_knowledge WHERE name = 'port' FOR UPDATE
-- next statement
SELECT c.told, c.model, c.dimension, c.embedding::text FROM loom_knowledge_chunks c
JOIN loom_knowledge_documents d ON d.id = c.document WHERE d.base = 'port' AND d.path = 'rules.md' AND c.model IS NOT NULL
-- next statement
DELETE FROM loom_knowledge_documents WHERE base = 'port' AND path = ANY('{rules.md}')
-- next statement
INSERT INTO loom_knowledge_documents (base, path, digest, chunks, length) VALUES ('port', 'rules.md', 'd1', 1, 11) RETURNING id
-- next statement
INSERT INTO loom_knowledge_chunks (base, document, ordinal, headings, first_line, last_line, page, content, told,
    lexemes, length, model, dimension, embedding)
VALUES ('port', 1, 1, '{Rules}', 3, 4, NULL, 'Ships must slow down in the harbour.', 'rules.md > Rules
Ships must slow down in the harbour.',
    '''rules.md'':1 ''rule'':2,4 ''md'':3 ''ship'':5 ''must'':6 ''slow'':7 ''down'':8 ''in'':9 ''the'':10 ''harbour'':11'::tsvector, 11, NULL, NULL, NULL::vector)
-- next statement
SELECT id, told FROM loom_knowledge_chunks WHERE base = 'port' AND model IS NULL ORDER BY id LIMIT 10
-- next statement
UPDATE loom_knowledge_chunks SET model = 'directions', dimension = 2, embedding = '[1.0,0.0]'::vector WHERE id = 1
-- next statement
INSERT INTO loom_knowledge (name, folder) VALUES ('acme/port', '/srv/port')
ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, updated_at = now()
-- next statement
SELECT FROM loom_knowledge WHERE name = 'acme/port' FOR UPDATE
-- next statement
SELECT c.told, c.model, c.dimension, c.embedding::text FROM loom_knowledge_chunks c
JOIN loom_knowledge_documents d ON d.id = c.document WHERE d.base = 'acme/port' AND d.path = 'own.md' AND c.model IS NOT NULL
-- next statement
DELETE FROM loom_knowledge_documents WHERE base = 'acme/port' AND path = ANY('{own.md}')
-- next statement
INSERT INTO loom_knowledge_documents (base, path, digest, chunks, length) VALUES ('acme/port', 'own.md', 'd1', 1, 11) RETURNING id
-- next statement
INSERT INTO loom_knowledge_chunks (base, document, ordinal, headings, first_line, last_line, page, content, told,
    lexemes, length, model, dimension, embedding)
VALUES ('acme/port', 2, 1, '{Rules}', 3, 4, NULL, 'Ships must slow down in the harbour.', 'own.md > Rules
Ships must slow down in the harbour.',
    '''own.md'':1 ''own'':2 ''md'':3 ''rule'':4 ''ship'':5 ''must'':6 ''slow'':7 ''down'':8 ''in'':9 ''the'':10 ''harbour'':11'::tsvector, 11, NULL, NULL, NULL::vector)
-- next statement
SELECT id, told FROM loom_knowledge_chunks WHERE base = 'acme/port' AND model IS NULL ORDER BY id LIMIT 10
-- next statement
UPDATE loom_knowledge_chunks SET model = 'directions', dimension = 2, embedding = '[1.0,0.0]'::vector WHERE id = 2
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,trip}'::text[]) AS session
-- next statement
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT 'acme', 'ann', 'preference', 'prefers sail to motor', '\x706abf29fe95799fcc072ae0f75f31b5'::bytea, 'rule', 'trip', 'r',
    '', '2026-11-01 12:00:00+00:00'::timestamptz
WHERE 'rule' = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = '\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09'::bytea AND fact IN (''::bytea, '\xc8684394dbdc51e166426c62557eb00a0e15c0c344bf7c390ec07fc2ce96832f'::bytea, '\xc8684394dbdc51e166426c62557eb00a0e15c0c344bf7c390ec07fc2ce96832f'::bytea) AND until >= '2026-11-01 12:00:00+00:00'::timestamptz
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x6306409f435ea7814ea02eaa798b4f35592a05dd70e6abc9c16811af36fd120e","\\\\x075bea4dc026040f50b301ef973d6bc798fbdbb85c6cc6d7e7fcabfd84f84e6e"}'::bytea[]) AND until >= '2026-11-01 12:00:00+00:00'::timestamptz)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at, superseded_by = NULL, compared = false
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (false OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
DELETE FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND id IN (
    SELECT id FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann'
    ORDER BY superseded_by IS NULL DESC, source = 'added' DESC, created_at DESC, id DESC OFFSET 200
)
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,trip}'::text[]) AS session
-- next statement
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT 'acme', 'ann', 'preference', 'sails on Sundays', '\x12dfb8fee057523d469fa100667be707'::bytea, 'rule', 'trip', 'r',
    '', '2026-11-01 12:01:00+00:00'::timestamptz
WHERE 'rule' = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = '\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09'::bytea AND fact IN (''::bytea, '\xcfcc250e3778b9a8dc98b160354c230452fecaeaee8fa69fbe816c074da6ff5d'::bytea, '\xcfcc250e3778b9a8dc98b160354c230452fecaeaee8fa69fbe816c074da6ff5d'::bytea) AND until >= '2026-11-01 12:01:00+00:00'::timestamptz
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x6306409f435ea7814ea02eaa798b4f35592a05dd70e6abc9c16811af36fd120e","\\\\x075bea4dc026040f50b301ef973d6bc798fbdbb85c6cc6d7e7fcabfd84f84e6e"}'::bytea[]) AND until >= '2026-11-01 12:01:00+00:00'::timestamptz)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at, superseded_by = NULL, compared = false
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (false OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
DELETE FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND id IN (
    SELECT id FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann'
    ORDER BY superseded_by IS NULL DESC, source = 'added' DESC, created_at DESC, id DESC OFFSET 200
)
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,trip}'::text[]) AS session
-- next statement
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT 'acme', 'ann', 'preference', 'drinks coffee', '\x6ffb6ec300a5c608c3166af80abe31c6'::bytea, 'rule', 'trip', 'r',
    '', '2026-11-01 12:02:00+00:00'::timestamptz
WHERE 'rule' = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = '\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09'::bytea AND fact IN (''::bytea, '\xf3f29256340c7639f078fa9a767be51de8292566e2ba84c21067bb34cafecbaa'::bytea, '\xf3f29256340c7639f078fa9a767be51de8292566e2ba84c21067bb34cafecbaa'::bytea) AND until >= '2026-11-01 12:02:00+00:00'::timestamptz
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x6306409f435ea7814ea02eaa798b4f35592a05dd70e6abc9c16811af36fd120e","\\\\x075bea4dc026040f50b301ef973d6bc798fbdbb85c6cc6d7e7fcabfd84f84e6e"}'::bytea[]) AND until >= '2026-11-01 12:02:00+00:00'::timestamptz)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at, superseded_by = NULL, compared = false
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (false OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
DELETE FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND id IN (
    SELECT id FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann'
    ORDER BY superseded_by IS NULL DESC, source = 'added' DESC, created_at DESC, id DESC OFFSET 200
)
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts
WHERE (tenant, user_id) IN (SELECT * FROM unnest('{acme}'::text[], '{ann}'::text[])) AND superseded_by IS NULL AND (run_id = '' OR run_id <> '')
ORDER BY created_at DESC, id DESC LIMIT 200
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09}'::text[]) AS session
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (false OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
UPDATE loom_person_facts SET compared = true WHERE tenant = 'acme' AND user_id = 'ann' AND id = 3
-- next statement
UPDATE loom_person_facts AS old SET superseded_by = new.id
FROM unnest('{2}'::int2[]::bigint[], '{3}'::int2[]::bigint[]) AS new (was, id)
WHERE tenant = 'acme' AND user_id = 'ann' AND (old.id = new.was OR old.superseded_by = new.was) AND old.id <> new.id
-- next statement
SELECT id, content FROM loom_person_facts WHERE model IS NULL ORDER BY id LIMIT 10
-- next statement
UPDATE loom_person_facts SET model = 'directions', dimension = 2, embedding = '[0.0,1.0]'::vector
WHERE id = 1
-- next statement
UPDATE loom_person_facts SET model = 'directions', dimension = 2, embedding = '[0.0,1.0]'::vector
WHERE id = 2
-- next statement
UPDATE loom_person_facts SET model = 'directions', dimension = 2, embedding = '[0.0,1.0]'::vector
WHERE id = 3
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts
WHERE (tenant, user_id) IN (SELECT * FROM unnest('{acme}'::text[], '{ann}'::text[])) AND superseded_by IS NULL AND (run_id = '' OR run_id <> '')
ORDER BY created_at DESC, id DESC LIMIT 200
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09}'::text[]) AS session
-- next statement
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT 'acme', 'ann', 'decision', 'sells the boat', '\x9500249af5f6588734af0d753c17d5b9'::bytea, 'added', '', '',
    '', '2026-11-01 12:00:00+00:00'::timestamptz
WHERE 'added' = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = '\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09'::bytea AND fact IN (''::bytea, '\xab5a3a41daa4fbd011eb2bbcffddba49ae466d77d89ac8fa3f5cf6798b703dd5'::bytea, '\xab5a3a41daa4fbd011eb2bbcffddba49ae466d77d89ac8fa3f5cf6798b703dd5'::bytea) AND until >= '2026-11-01 12:00:00+00:00'::timestamptz
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","\\\\x2ebfd97b4cefa5bcbc7fb0a3545be40f86c7ae2101b606e9d593074811027bfb","\\\\xa8246b59268a5c7fca4ed09a24e83e186a7e1fb66abfa0d7727893ab7ce3257c"}'::bytea[]) AND until >= '2026-11-01 12:00:00+00:00'::timestamptz)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at, superseded_by = NULL, compared = false
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (false OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
DELETE FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND id IN (
    SELECT id FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann'
    ORDER BY superseded_by IS NULL DESC, source = 'added' DESC, created_at DESC, id DESC OFFSET 200
)
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{f48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09}'::text[]) AS session
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND 1 IN (id, superseded_by) ORDER BY id <> 1
-- next statement
INSERT INTO loom_person_facts_forgotten AS known (owner, fact, until)
SELECT '\xf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09'::bytea, '\xc8684394dbdc51e166426c62557eb00a0e15c0c344bf7c390ec07fc2ce96832f'::bytea, greatest(clock_timestamp(), max(created_at)) FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann'
ON CONFLICT (owner, fact) DO UPDATE SET until = greatest(excluded.until, known.until)
-- next statement
DELETE FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (1::bigint IS NULL OR 1 IN (id, superseded_by))
RETURNING session_id
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended('loom tenant ' || 'acme', 0))
-- next statement
INSERT INTO loom_tenant_runs AS runs (tenant, run_id) VALUES ('acme', 'run')
ON CONFLICT (run_id) DO UPDATE SET tenant = excluded.tenant, checked_at = NULL, place = DEFAULT
WHERE runs.tenant <> excluded.tenant
-- next statement
UPDATE loom_tenant_runs SET checked_at = now() WHERE run_id IN (
    SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NULL ORDER BY place LIMIT greatest(
        0, 1 - (SELECT count(*) FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL)
    )
)
RETURNING run_id
-- next statement
SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended('loom tenant ' || 'acme', 0))
-- next statement
INSERT INTO loom_tenant_runs AS runs (tenant, run_id) VALUES ('acme', 'waiting')
ON CONFLICT (run_id) DO UPDATE SET tenant = excluded.tenant, checked_at = NULL, place = DEFAULT
WHERE runs.tenant <> excluded.tenant
-- next statement
UPDATE loom_tenant_runs SET checked_at = now() WHERE run_id IN (
    SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NULL ORDER BY place LIMIT greatest(
        0, 1 - (SELECT count(*) FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL)
    )
)
RETURNING run_id
-- next statement
SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL
-- next statement
INSERT INTO loom_tenant_days AS days (tenant, day, tokens, micros) VALUES ('acme', '2026-11-01'::date, 100, 7)
ON CONFLICT (tenant, day) DO UPDATE
SET tokens = days.tokens + excluded.tokens, micros = days.micros + excluded.micros
RETURNING tokens, micros
-- next statement
INSERT INTO loom_tenant_days AS days (tenant, day, tokens, micros) VALUES ('acme', '2026-11-01'::date, 100, 7)
ON CONFLICT (tenant, day) DO UPDATE
SET tokens = days.tokens + excluded.tokens, micros = days.micros + excluded.micros
RETURNING tokens, micros
-- next statement
INSERT INTO loom_access_tokens (id, hash, name, role, tenant, created_by, expires_at)
VALUES ('phone', '\x70686f6e65'::bytea, 'phone', 'operator', 'acme', 'ann', NULL)
-- next statement
INSERT INTO loom_access_tokens (id, hash, name, role, tenant, created_by, expires_at)
VALUES ('laptop', '\x6c6170746f70'::bytea, 'laptop', 'operator', 'acme', 'ann', NULL)
-- next statement
UPDATE loom_access_tokens SET revoked_at = now() WHERE id = 'phone' AND revoked_at IS NULL
-- next statement
SELECT EXISTS (SELECT FROM loom_access_tokens WHERE id = 'phone')
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended('loom approvals ' || 'run', 0))
-- next statement
INSERT INTO loom_call_approvals (run_id, call_id, asked_at, decision, approver) VALUES ('run', 'call', 'asked', '\x0000000000000000000000000000000000000000000000000000000000000000'::bytea, 'ann')
ON CONFLICT DO NOTHING
-- next statement
SELECT approver FROM loom_call_approvals WHERE run_id = 'run' AND call_id = 'call' AND asked_at = 'asked' AND decision = '\x0000000000000000000000000000000000000000000000000000000000000000'::bytea
ORDER BY approved_at, approver
-- next statement
SELECT pg_advisory_xact_lock(1280265071)
-- next statement
SELECT key FROM loom_audit WHERE key = ANY('{run/start}')
-- next statement
SELECT sequence, hash FROM loom_audit ORDER BY sequence DESC LIMIT 1
-- next statement
SELECT clock_timestamp()
-- next statement
INSERT INTO loom_audit (sequence, recorded_at, key_id, previous, hash, key, at, act, source, by, identity, tenant, run_id, subject, digest, proof) VALUES (1, '2026-11-29 05:30:58.195879+00:00'::timestamptz, '', '\x0000000000000000000000000000000000000000000000000000000000000000'::bytea, '\x3ccc3fe5716b00ddcd808a1416e2757b6bc60c808fbeca0d4b2852cf68b98ea8'::bytea, 'run/start', '2026-11-01 12:00:00+00:00'::timestamptz, 'start', 'update', 'ann', '', 'acme', 'run', '', '', '')
-- next statement
SELECT pg_advisory_xact_lock(1280265071)
-- next statement
SELECT key FROM loom_audit WHERE key = ANY('{run/approve}')
-- next statement
SELECT sequence, hash FROM loom_audit ORDER BY sequence DESC LIMIT 1
-- next statement
SELECT clock_timestamp()
-- next statement
INSERT INTO loom_audit (sequence, recorded_at, key_id, previous, hash, key, at, act, source, by, identity, tenant, run_id, subject, digest, proof) VALUES (2, '2026-11-29 05:30:58.202514+00:00'::timestamptz, '', '\x3ccc3fe5716b00ddcd808a1416e2757b6bc60c808fbeca0d4b2852cf68b98ea8'::bytea, '\x527e9a1a868b355c71e378aa0bb29ea10b385270d9ce8943e8e7b61ea1d980a5'::bytea, 'run/approve', '2026-11-01 12:00:00+00:00'::timestamptz, 'approve', 'update', 'ann', '', 'acme', 'run', '', '', '')
-- next statement
INSERT INTO loom_audit_reading AS known (server, task_queue, read_until, swept_at)
VALUES ('server', 'loom', '2026-11-01 12:00:00+00:00'::timestamptz, clock_timestamp())
ON CONFLICT (server, task_queue) DO UPDATE
SET read_until = greatest(known.read_until, excluded.read_until), swept_at = excluded.swept_at
-- next statement
INSERT INTO loom_audit_unread (server, task_queue, run_id, execution) VALUES ('server', 'loom', '\x72756e'::bytea, 'execution') ON CONFLICT DO NOTHING
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = 'acme' AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
-- next statement
SELECT pg_advisory_xact_lock(1280265070)
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = 'acme' AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
-- next statement
INSERT INTO loom_data_keys (id, tenant, wrapped, wrapped_by) VALUES ('t-b6506863df1780fc', 'acme', '\x264443fee5e123ca3bd8ca5c9b294454f92202f69fca4eed6f14f82fe21780a2a29e0d7f6b03b129aa4ebdc0e0509f2d16fd46cc54b0bda4236a41aa'::bytea, 'k-2026-11-01-000000')
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = '' AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
-- next statement
SELECT pg_advisory_xact_lock(1280265070)
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = '' AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
-- next statement
INSERT INTO loom_data_keys (id, tenant, wrapped, wrapped_by) VALUES ('words', '', '\x63dc3f27bf76ecaac065991aab0b62f753517086ff90f8c569d1de8107a68f5866fb5b061a24ad9803137d962a7c7e38b261af31b34b950a01bd7c12'::bytea, 'k-2026-11-01-000000')
-- read
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
SELECT id, data FROM loom_payloads WHERE id = ANY( E'{"\\\\xd0153d2b6fe26df3d21b4754b28e74997abfa341a37ab3250b421eb98d527f4a"}'::bytea[]::bytea[])
-- next statement
SELECT compressed, data FROM loom_artifacts WHERE run_id = 'run' AND artifact = 'tides'
-- next statement
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
VALUES ('\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea, 'run/finished', 'run', 2, 'e439cd1e4d4546ad91ac9344dd22b2d9'::uuid, now() + '0:00:02.500000'::interval, pg_backend_pid())
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim, alive_until, session) = (
    SELECT excluded.attempt, held.attempt, excluded.claim, excluded.alive_until, excluded.session
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim, held.alive_until, held.session
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
VALUES ('\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93'::bytea, 'run/lost', 'run', 2, '161aeb186dc74a9fa8fcb7acb165cab8'::uuid, now() + '0:00:02.500000'::interval, pg_backend_pid())
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim, alive_until, session) = (
    SELECT excluded.attempt, held.attempt, excluded.claim, excluded.alive_until, excluded.session
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim, held.alive_until, held.session
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, tenant, user_id, task FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') ORDER BY created_at DESC, id DESC LIMIT 2 * 5
-- next statement
SELECT language, word, ts_lexize((language || '_stem')::regdictionary, word)
FROM unnest('{english,german,french,spanish,italian,portuguese,dutch,swedish,russian}'::text[]) AS language, unnest('{the,harbour}'::text[]) AS word
-- next statement
SELECT reltuples::float8, set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true) FROM pg_class WHERE oid = 'loom_memory'::regclass
-- next statement
EXPLAIN (FORMAT JSON) SELECT FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}')
-- next statement
SELECT asked, is_stem, least(1, sum(often)) * reltuples FROM pg_class, pg_stats,
    unnest(most_common_elems::text::text[], most_common_elem_freqs) AS common (word, often),
    unnest('{harbour}'::text[], '{t}'::bool[]::boolean[]) AS question (asked, is_stem)
WHERE pg_class.oid = 'loom_memory'::regclass AND schemaname = current_schema() AND tablename = 'loom_memory'
    AND attname = 'lexemes' AND CASE WHEN is_stem THEN starts_with(word, asked) ELSE word = asked END
GROUP BY asked, is_stem, reltuples
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, length, ts_rank('{1,1,1,1}', lexemes, '''harbour'':*'::tsquery) AS r0 FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') AND lexemes @@ '''harbour'':*'::tsquery 
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, 
ln(1 + (greatest(0.0, (SELECT count(*) FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}'))) + 0.5) / (greatest(0.0, count(*) FILTER (WHERE r0 > 0)) + 0.5)) AS i0
 FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id, ((i0 * r0 / (r0 + share)) / (i0))::float8, ((CASE WHEN r0 > 0 THEN i0 ELSE 0 END) / (i0))::float8
        FROM weighed ORDER BY i0 * r0 / (r0 + share) DESC, id DESC LIMIT 100
-- next statement
WITH near AS MATERIALIZED (
            SELECT id FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') AND model = 'directions' AND dimension = 2
            ORDER BY (sketch <#> '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec) + 0 LIMIT 100
        )
        SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM near JOIN loom_memory_vectors USING (id)
        ORDER BY embedding <=> '[1.0,0.0]'::vector LIMIT 100
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, tenant, user_id, task FROM loom_memory WHERE id = ANY('{3,7,1,5}'::int2[])
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant, user_id, updated_at FROM loom_scoped_memory
WHERE place = ANY('{local:run,tree:run,global}') AND (NULL::text IS NULL OR id = NULL) ORDER BY place, id, version DESC
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, tenant, user_id, task FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{tripf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,c32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}') ORDER BY created_at DESC, id DESC LIMIT 2 * 5
-- next statement
SELECT language, word, ts_lexize((language || '_stem')::regdictionary, word)
FROM unnest('{english,german,french,spanish,italian,portuguese,dutch,swedish,russian}'::text[]) AS language, unnest('{the,harbour}'::text[]) AS word
-- next statement
SELECT reltuples::float8, set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true) FROM pg_class WHERE oid = 'loom_memory'::regclass
-- next statement
EXPLAIN (FORMAT JSON) SELECT FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{tripf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,c32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}')
-- next statement
SELECT asked, is_stem, least(1, sum(often)) * reltuples FROM pg_class, pg_stats,
    unnest(most_common_elems::text::text[], most_common_elem_freqs) AS common (word, often),
    unnest('{harbour}'::text[], '{t}'::bool[]::boolean[]) AS question (asked, is_stem)
WHERE pg_class.oid = 'loom_memory'::regclass AND schemaname = current_schema() AND tablename = 'loom_memory'
    AND attname = 'lexemes' AND CASE WHEN is_stem THEN starts_with(word, asked) ELSE word = asked END
GROUP BY asked, is_stem, reltuples
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, length, ts_rank('{1,1,1,1}', lexemes, '''harbour'':*'::tsquery) AS r0 FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{tripf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,c32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}') AND lexemes @@ '''harbour'':*'::tsquery 
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, 
ln(1 + (greatest(0.0, (SELECT count(*) FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{tripf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,c32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}'))) + 0.5) / (greatest(0.0, count(*) FILTER (WHERE r0 > 0)) + 0.5)) AS i0
 FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id, ((i0 * r0 / (r0 + share)) / (i0))::float8, ((CASE WHEN r0 > 0 THEN i0 ELSE 0 END) / (i0))::float8
        FROM weighed ORDER BY i0 * r0 / (r0 + share) DESC, id DESC LIMIT 100
-- next statement
WITH near AS MATERIALIZED (
            SELECT id FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{tripf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,c32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}') AND model = 'directions' AND dimension = 2
            ORDER BY (sketch <#> '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec) + 0 LIMIT 100
        )
        SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM near JOIN loom_memory_vectors USING (id)
        ORDER BY embedding <=> '[1.0,0.0]'::vector LIMIT 100
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, tenant, user_id, task FROM loom_memory WHERE id = ANY('{4,8}'::int2[])
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant, user_id, updated_at FROM loom_scoped_memory
WHERE place = ANY('{local:runf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,tree:runf48b29332a6645fad5b94d9815aae0b0c156c085b3f576a4706a3f3fc1acbc09,globalc32bc3b346fde4d9fc0fe5845312599cb814ee0a0aa42d37a1018d7fb13617bd}') AND (NULL::text IS NULL OR id = NULL) ORDER BY place, id, version DESC
-- next statement
SELECT id FROM loom_memory_tasks WHERE id = ANY( E'{"\\\\x2dc06ff896ba86bedee4f75435eb8694f56148d46e6f9328e5ed6303ee49d182"}'::bytea[])
-- next statement
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\xf50a3c40f7fe4574d60883ccfda82d161af9c354a19b6382cf6a7cdb277f0252","\\\\x1a1591b768821b706e716c65f290c7a81853a43245d9c0b4cf03f400cc50e022"}'::bytea[])
UNION ALL SELECT owner, until FROM loom_person_facts_forgotten WHERE owner = ANY('{}') AND fact = ''
-- next statement
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)
-- next statement
SELECT name FROM loom_knowledge WHERE strpos(name, '/') = 0 OR starts_with(name, '/')
-- next statement
SELECT language, word, ts_lexize((language || '_stem')::regdictionary, word)
FROM unnest('{english,german,french,spanish,italian,portuguese,dutch,swedish,russian}'::text[]) AS language, unnest('{slow,down,in,the,harbour}'::text[]) AS word
-- next statement
SELECT sum(chunks) FROM loom_knowledge_documents WHERE base = ANY('{port}'::text[])
-- next statement
SELECT word, (SELECT count(*) FROM (SELECT FROM loom_knowledge_chunks
    WHERE base = ANY('{port}'::text[]) AND lexemes @@ word::tsquery LIMIT 5000) AS few)
FROM unnest('{''slow'':*,''harbour'':*}'::text[]) AS word
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, length, ts_rank('{1,1,1,1}', lexemes, '''slow'':*'::tsquery) AS r0, ts_rank('{1,1,1,1}', lexemes, '''harbour'':*'::tsquery) AS r1 FROM loom_knowledge_chunks WHERE base = ANY('{port}'::text[]) AND lexemes @@ '''slow'':* | ''harbour'':*'::tsquery 
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, 
ln(1 + (greatest(1.0, count(*)) + 0.5) / (greatest(1.0, count(*) FILTER (WHERE r0 > 0)) + 0.5)) AS i0
, 
ln(1 + (greatest(1.0, count(*)) + 0.5) / (greatest(1.0, count(*) FILTER (WHERE r1 > 0)) + 0.5)) AS i1
 FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id, ((i0 * r0 / (r0 + share) + i1 * r1 / (r1 + share)) / (i0 + i1))::float8, ((CASE WHEN r0 > 0 THEN i0 ELSE 0 END + CASE WHEN r1 > 0 THEN i1 ELSE 0 END) / (i0 + i1))::float8
        FROM weighed ORDER BY i0 * r0 / (r0 + share) + i1 * r1 / (r1 + share) DESC, id DESC LIMIT 100
-- next statement
SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM loom_knowledge_chunks
WHERE base = ANY('{port}'::text[]) AND model = 'directions' AND dimension = 2
ORDER BY embedding <=> '[1.0,0.0]'::vector, id LIMIT 100
-- next statement
SELECT c.id, c.base, d.path, c.content, c.headings, c.first_line, c.last_line, c.page
FROM loom_knowledge_chunks c JOIN loom_knowledge_documents d ON d.id = c.document WHERE c.id = ANY('{1}'::int2[])
-- next statement
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)
-- next statement
SELECT name FROM loom_knowledge WHERE strpos(name, '/') = 0 OR starts_with(name, 'acme/')
-- next statement
SELECT language, word, ts_lexize((language || '_stem')::regdictionary, word)
FROM unnest('{english,german,french,spanish,italian,portuguese,dutch,swedish,russian}'::text[]) AS language, unnest('{slow,down,in,the,harbour}'::text[]) AS word
-- next statement
SELECT sum(chunks) FROM loom_knowledge_documents WHERE base = ANY('{acme/port}'::text[])
-- next statement
SELECT word, (SELECT count(*) FROM (SELECT FROM loom_knowledge_chunks
    WHERE base = ANY('{acme/port}'::text[]) AND lexemes @@ word::tsquery LIMIT 5000) AS few)
FROM unnest('{''slow'':*,''harbour'':*}'::text[]) AS word
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, length, ts_rank('{1,1,1,1}', lexemes, '''slow'':*'::tsquery) AS r0, ts_rank('{1,1,1,1}', lexemes, '''harbour'':*'::tsquery) AS r1 FROM loom_knowledge_chunks WHERE base = ANY('{acme/port}'::text[]) AND lexemes @@ '''slow'':* | ''harbour'':*'::tsquery 
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, 
ln(1 + (greatest(1.0, count(*)) + 0.5) / (greatest(1.0, count(*) FILTER (WHERE r0 > 0)) + 0.5)) AS i0
, 
ln(1 + (greatest(1.0, count(*)) + 0.5) / (greatest(1.0, count(*) FILTER (WHERE r1 > 0)) + 0.5)) AS i1
 FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id, ((i0 * r0 / (r0 + share) + i1 * r1 / (r1 + share)) / (i0 + i1))::float8, ((CASE WHEN r0 > 0 THEN i0 ELSE 0 END + CASE WHEN r1 > 0 THEN i1 ELSE 0 END) / (i0 + i1))::float8
        FROM weighed ORDER BY i0 * r0 / (r0 + share) + i1 * r1 / (r1 + share) DESC, id DESC LIMIT 100
-- next statement
SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM loom_knowledge_chunks
WHERE base = ANY('{acme/port}'::text[]) AND model = 'directions' AND dimension = 2
ORDER BY embedding <=> '[1.0,0.0]'::vector, id LIMIT 100
-- next statement
SELECT c.id, c.base, d.path, c.content, c.headings, c.first_line, c.last_line, c.page
FROM loom_knowledge_chunks c JOIN loom_knowledge_documents d ON d.id = c.document WHERE c.id = ANY('{2}'::int2[])
-- next statement
SELECT sequence, recorded_at, key_id, previous, hash, key, at, act, source, by, identity, tenant, run_id, subject, digest, proof FROM loom_audit WHERE 
(NULL::text IS NULL OR tenant = NULL)
    AND (NULL::text IS NULL OR run_id = NULL OR starts_with(run_id, NULL || '/'))
    AND (NULL::text IS NULL OR NULL = ANY(by || string_to_array(by, ', ')))
    AND (NULL::timestamptz IS NULL OR at >= NULL)
 ORDER BY sequence DESC LIMIT 10
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant <> '' ORDER BY tenant, created_at
-- next statement
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = 'acme' AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
-- next statement
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
-- next statement
SELECT data FROM loom_payloads WHERE id = '\x92b2fa58028958317e408bd84ecfa70f5ee35b121991dbc232c49d166353708b'::bytea
-- next statement
INSERT INTO loom_used_starts (start, run_id, execution) VALUES ('start', 'run', 'another execution')
ON CONFLICT (start) DO UPDATE SET run_id = loom_used_starts.run_id -- so that the statement returns the row
RETURNING execution
-- next statement
WITH fresh AS (
    SELECT run_id FROM loom_artifacts WHERE created_at >= '2126-01-01 00:00:00+00:00'::timestamptz
    UNION SELECT run_id FROM loom_effects WHERE greatest(created_at, ended_at) >= '2126-01-01 00:00:00+00:00'::timestamptz
    UNION SELECT owner FROM loom_payload_owners WHERE stored_at >= '2126-01-01 00:00:00+00:00'::timestamptz
)
SELECT tree, array_agg(run_id), array_agg(DISTINCT parent) FILTER (WHERE parent <> '') FROM loom_stored_runs
WHERE server = 'server'
GROUP BY tree
HAVING bool_or(seen) AND NOT bool_or(run_id IN (SELECT run_id FROM fresh))
    AND coalesce(max(checked_at) < now() - interval '1 hour', true)
ORDER BY max(checked_at) NULLS FIRST LIMIT 10
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts WHERE tenant = 'acme' AND user_id = 'ann' AND (true OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
-- next statement
SELECT id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to FROM loom_person_facts
WHERE (tenant, user_id) IN (SELECT * FROM unnest('{acme}'::text[], '{ann}'::text[])) AND superseded_by IS NULL AND (run_id = '' OR run_id <> '')
ORDER BY created_at DESC, id DESC LIMIT 200
-- next statement
SELECT id, name, role, tenant, created_at, created_by, expires_at, revoked_at FROM loom_access_tokens ORDER BY created_at, id
-- next statement
SELECT run_id, call_id, asked_at, approver FROM loom_call_approvals WHERE run_id = ANY('{run}')
GROUP BY run_id, call_id, asked_at, approver ORDER BY min(approved_at), approver
-- next statement
SELECT sequence, recorded_at, key_id, previous, hash, key, at, act, source, by, identity, tenant, run_id, subject, digest, proof FROM loom_audit ORDER BY sequence, ctid
-- next statement
SELECT read_until FROM loom_audit_reading WHERE server = 'server' AND task_queue = 'loom'
-- next statement
SELECT run_id, execution FROM loom_audit_unread WHERE server = 'server' AND task_queue = 'loom'
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended('loom tenant ' || 'acme', 0))
-- next statement
UPDATE loom_tenant_runs SET checked_at = now() WHERE run_id IN (
    SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NULL ORDER BY place LIMIT greatest(
        0, 1 - (SELECT count(*) FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL)
    )
)
RETURNING run_id
-- next statement
SELECT run_id FROM loom_tenant_runs WHERE tenant = 'acme' AND checked_at IS NOT NULL
-- next statement
SELECT tokens, micros FROM loom_tenant_days WHERE tenant = 'acme' AND day = '2026-11-01'::date
