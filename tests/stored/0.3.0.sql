-- Loom 0.3.0, schema 4
-- tables
SELECT pg_advisory_xact_lock(1282371437)
-- next statement
CREATE TABLE IF NOT EXISTS loom_payloads (
    id bytea PRIMARY KEY,
    data bytea NOT NULL,
    size int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)
-- stored
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim)
VALUES ('\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea, 'run/finished', 'run', 1, 'a8711e870d364908a6a5f9a715f461a3'::uuid)
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim) = (
    SELECT excluded.attempt, held.attempt, excluded.claim
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
UPDATE loom_effects SET result = '{"content":"paid","status":"success","error_type":null,"stage_ms":[],"resend":false,"parts":[],"artifact":"","length":0}', ended_at = now() WHERE id = '\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea AND attempt = 1 AND result IS NULL
-- next statement
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim)
VALUES ('\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93'::bytea, 'run/lost', 'run', 1, '0f1ecaee46ed47789796094098670bba'::uuid)
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim) = (
    SELECT excluded.attempt, held.attempt, excluded.claim
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
-- next statement
INSERT INTO loom_artifacts (run_id, artifact, compressed, data, size) VALUES ('run', 'tides', true, '\x7801edd4c109c0300805d07ba770b584a6a4500804bb7f9309bac0bb88f86fa22f7b8bbccf554a7d5a8c2b724d7a9975bcf3d8bdd436dc865f2003094948421292908424242109494842129290842424210949f827e1073e9c4f09'::bytea, 6000) ON CONFLICT DO NOTHING
-- next statement
INSERT INTO loom_payloads (id, data, size) VALUES ('\xd0153d2b6fe26df3d21b4754b28e74997abfa341a37ab3250b421eb98d527f4a'::bytea, '\x0a160a08656e636f64696e67120a6a736f6e2f706c61696e1210226120636f6e766572736174696f6e22'::bytea, 42) ON CONFLICT DO NOTHING
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{run,trip}'::text[]) AS session
-- next statement
SELECT id FROM loom_memory_tasks WHERE id = ANY( E'{"\\\\x2dc06ff896ba86bedee4f75435eb8694f56148d46e6f9328e5ed6303ee49d182","\\\\x3f51fc88fd45463934c0f749e6faeef7f0dc85a21eeb70dc72fafb6fe400a9dc","\\\\xbe0e411fa775bc8c64eb9fa1adf23ec626855dca2255cc2247a64ee1b89b7fbd"}'::bytea[])
-- next statement
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5","\\\\x34a389d790fc2bdd8458e5f1cde6933c97d11eeda65cf328b64460f0d68f04b5"}'::bytea[])
-- next statement
SELECT run, coalesce((SELECT ordinal FROM loom_memory_tasks WHERE run_id = run ORDER BY ordinal DESC LIMIT 1), 0)
FROM unnest('{run}'::text[]) AS run
-- next statement
INSERT INTO loom_memory_tasks (id, task_id, run_id, session_id, turn, ordinal, action, created_at)
VALUES ('\x2dc06ff896ba86bedee4f75435eb8694f56148d46e6f9328e5ed6303ee49d182'::bytea, 'run/n1/node.message', 'run', 'trip', 0, 1, 'node.message', '2026-11-01 12:01:00+00:00'::timestamptz)
-- next statement
INSERT INTO loom_memory_tasks (id, task_id, run_id, session_id, turn, ordinal, action, created_at)
VALUES ('\x3f51fc88fd45463934c0f749e6faeef7f0dc85a21eeb70dc72fafb6fe400a9dc'::bytea, 'run/n2/node.message', 'run', 'trip', 0, 2, 'node.message', '2026-11-01 12:02:00+00:00'::timestamptz)
-- next statement
INSERT INTO loom_memory_tasks (id, task_id, run_id, session_id, turn, ordinal, action, created_at)
VALUES ('\xbe0e411fa775bc8c64eb9fa1adf23ec626855dca2255cc2247a64ee1b89b7fbd'::bytea, 'run/n3/node.message', 'run', 'trip', 0, 3, 'node.message', '2026-11-01 12:03:00+00:00'::timestamptz)
-- next statement
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, created_at
) VALUES (
    'trip', 'trip', 'run', 'run', 'run/n1/node.message', NULL, 0, 1,
    'default', 'node.message', 'completed', 'L2', 'local', 0.9, 'The harbour opens at six in the morning, and closes at night when the last ship of the day has come in.', '\xec8206aba8cc3043d667475c2f0aead9'::bytea, '{"task_id":"run/n1/node.message","run_id":"run","root_run_id":"run","session_id":"trip","action":"node.message","created_at":"2026-11-01T12:01:00Z","source_agent":"default","parameters":{"text":"The harbour opens at six in the morning, and closes at night when the last ship of the day has come in."},"metadata":{"importance":0.9}}',
    '''the'':1,7,14,18 ''harbour'':2 ''open'':3 ''at'':4,11 ''six'':5 ''in'':6,22 ''morning'':8 ''and'':9 ''close'':10 ''night'':12 ''when'':13 ''last'':15 ''ship'':16 ''of'':17 ''day'':19 ''has'':20 ''come'':21'::tsvector, 22, true, '2026-11-01 12:01:00+00:00'::timestamptz
)
-- next statement
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, created_at
) VALUES (
    'trip', 'trip', 'run', 'run', 'run/n2/node.message', NULL, 0, 2,
    'default', 'node.message', 'completed', 'L2', 'local', 0.9, 'The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine.', '\xd6de661a3bdc8f88028c6e19e1b01d1a'::bytea, '{"task_id":"run/n2/node.message","run_id":"run","root_run_id":"run","session_id":"trip","action":"node.message","created_at":"2026-11-01T12:02:00Z","source_agent":"default","parameters":{"text":"The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine."},"metadata":{"importance":0.9}}',
    '''the'':1,4,16 ''bakery'':2 ''behind'':3 ''market'':5 ''open'':6 ''at'':7,19 ''seven'':8 ''and'':9 ''its'':10 ''bread'':11 ''is'':12 ''sold'':13 ''out'':14 ''before'':15 ''ferry'':17 ''leave'':18 ''nine'':20'::tsvector, 20, true, '2026-11-01 12:02:00+00:00'::timestamptz
)
-- next statement
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, created_at
) VALUES (
    '', 'trip', 'run', 'run', 'run/n3/node.message', NULL, 0, 3,
    'default', 'node.message', 'completed', 'L2', 'global', 0.9, 'Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them.', '\x17697a70a0488fada6c38b1301d5615f'::bytea, '{"task_id":"run/n3/node.message","run_id":"run","root_run_id":"run","session_id":"trip","action":"node.message","created_at":"2026-11-01T12:03:00Z","source_agent":"default","parameters":{"text":"Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them."},"metadata":{"importance":0.9,"scope":"global"}}',
    '''every'':1 ''captain'':2 ''of'':3,11 ''the'':4,7,12 ''island'':5 ''know'':6 ''rock'':8 ''in'':9 ''front'':10 ''harbour'':13 ''but'':14 ''no'':15 ''chart'':16 ''that'':17 ''we'':18 ''have'':19 ''show'':20 ''them'':21'::tsvector, 21, true, '2026-11-01 12:03:00+00:00'::timestamptz
)
-- next statement
WITH important AS (
    SELECT id, run_id, content, created_at, summarised_at,
        row_number() OVER (PARTITION BY session_id, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer = 'L2'
)
SELECT id, content FROM important
WHERE summarised_at IS NULL AND (rank > 50 OR created_at < now() - '1 day 0:00:00'::interval OR EXISTS (
    SELECT FROM loom_memory_tasks AS ended
    WHERE ended.run_id = important.run_id AND ended.action IN ('node.complete', 'node.error')
))
ORDER BY id LIMIT 10
-- next statement
SELECT session_id FROM loom_memory WHERE id = 1
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 1 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 4
WHERE session_id = 'trip' AND fingerprint = '\x75d33a82907703f5673e09cc4a68cb77'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, created_at
)
SELECT 4, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: The harbour opens at six in the morning, and closes at night when the last ship of the day has come in.', '\x75d33a82907703f5673e09cc4a68cb77'::bytea, '''fact'':1 ''the'':2,8,15,19 ''harbour'':3 ''open'':4 ''at'':5,12 ''six'':6 ''in'':7,23 ''morning'':9 ''and'':10 ''close'':11 ''night'':13 ''when'':14 ''last'':16 ''ship'':17 ''of'':18 ''day'':20 ''has'':21 ''come'':22'::tsvector, 23, true, created_at
FROM loom_memory WHERE id = 1
-- next statement
SELECT session_id FROM loom_memory WHERE id = 2
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 2 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 5
WHERE session_id = 'trip' AND fingerprint = '\x6664555b3d450bec4df205d0f8151bde'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, created_at
)
SELECT 5, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine.', '\x6664555b3d450bec4df205d0f8151bde'::bytea, '''fact'':1 ''the'':2,5,17 ''bakery'':3 ''behind'':4 ''market'':6 ''open'':7 ''at'':8,20 ''seven'':9 ''and'':10 ''its'':11 ''bread'':12 ''is'':13 ''sold'':14 ''out'':15 ''before'':16 ''ferry'':18 ''leave'':19 ''nine'':21'::tsvector, 21, true, created_at
FROM loom_memory WHERE id = 2
-- next statement
SELECT session_id FROM loom_memory WHERE id = 3
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = 3 AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
-- next statement
SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))
-- next statement
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = 6
WHERE session_id = 'trip' AND fingerprint = '\x27c37d6cfcd7f68926903637ef286f47'::bytea AND layer IN ('L3', 'L4') AND superseded_by IS NULL
-- next statement
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, created_at
)
SELECT 6, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, 'fact: Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them.', '\x27c37d6cfcd7f68926903637ef286f47'::bytea, '''fact'':1 ''every'':2 ''captain'':3 ''of'':4,12 ''the'':5,8,13 ''island'':6 ''know'':7 ''rock'':9 ''in'':10 ''front'':11 ''harbour'':14 ''but'':15 ''no'':16 ''chart'':17 ''that'':18 ''we'':19 ''have'':20 ''show'':21 ''them'':22'::tsvector, 22, true, created_at
FROM loom_memory WHERE id = 3
-- next statement
SELECT id, content FROM loom_memory
WHERE model IS NULL AND telling AND layer <> 'L1' AND superseded_by IS NULL ORDER BY id LIMIT 10
-- next statement
SELECT DISTINCT session_id FROM loom_memory WHERE id = ANY('{1,2,3,4,5,6}'::int2[])
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{trip}'::text[]) AS session
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 1 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 2 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[0.0,1.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 3 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 4 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[1.0,0.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 5 RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, '[0.0,1.0]'::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
-- next statement
WITH kept AS (
    UPDATE loom_memory SET sketch = '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec, model = 'directions', dimension = 2
    WHERE id = 6 RETURNING id
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
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{other,run}'::text[]) AS session
-- next statement
SELECT id FROM loom_memory_tasks WHERE id = ANY( E'{"\\\\x49cba954f950991852c3b69a8ce8fe830090272eceb1d270725e8b3b2bd46f83"}'::bytea[])
-- next statement
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY( E'{"\\\\xd9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"}'::bytea[])
-- next statement
SELECT run, coalesce((SELECT ordinal FROM loom_memory_tasks WHERE run_id = run ORDER BY ordinal DESC LIMIT 1), 0)
FROM unnest('{run}'::text[]) AS run
-- next statement
INSERT INTO loom_memory_tasks (id, task_id, run_id, session_id, turn, ordinal, action, created_at)
VALUES ('\x49cba954f950991852c3b69a8ce8fe830090272eceb1d270725e8b3b2bd46f83'::bytea, 'run/n5/node.message', 'run', 'other', 0, 4, 'node.message', '2026-11-01 12:05:00+00:00'::timestamptz)
-- next statement
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, created_at
) VALUES (
    'other', 'other', 'run', 'run', 'run/n5/node.message', NULL, 0, 4,
    'default', 'node.message', 'completed', 'L2', 'local', 0.9, 'to be forgotten', '\x0ffd1c100f48fb71f1a4b993ea4fc3fc'::bytea, '{"task_id":"run/n5/node.message","run_id":"run","root_run_id":"run","session_id":"other","action":"node.message","created_at":"2026-11-01T12:05:00Z","source_agent":"default","parameters":{"text":"to be forgotten"},"metadata":{"importance":0.9}}',
    '''to'':1 ''be'':2 ''forgotten'':3'::tsvector, 3, false, '2026-11-01 12:05:00+00:00'::timestamptz
)
-- next statement
SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest('{other}'::text[]) AS session
-- next statement
INSERT INTO loom_memory_forgotten (session, until)
SELECT '\xd9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa'::bytea, greatest(clock_timestamp(), max(created_at)) FROM loom_memory_tasks WHERE session_id = 'other'
ON CONFLICT (session) DO UPDATE SET until = greatest(excluded.until, loom_memory_forgotten.until)
-- next statement
DELETE FROM loom_memory_tasks WHERE session_id = 'other'
-- next statement
DELETE FROM loom_scoped_memory WHERE session_id = 'other'
-- next statement
DELETE FROM loom_memory WHERE session_id = 'other'
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, task FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') ORDER BY created_at DESC, id DESC LIMIT 2 * 5
-- next statement
SELECT reltuples::float8, set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true) FROM pg_class WHERE oid = 'loom_memory'::regclass
-- next statement
EXPLAIN (FORMAT JSON) SELECT FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}')
-- next statement
SELECT word, often * reltuples FROM pg_class, pg_stats,
    unnest(most_common_elems::text::text[], most_common_elem_freqs) AS common (word, often)
WHERE pg_class.oid = 'loom_memory'::regclass AND schemaname = current_schema() AND tablename = 'loom_memory'
    AND attname = 'lexemes' AND word = ANY('{harbour}')
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, length, ts_rank('{1,1,1,1}', lexemes, '''harbour'''::tsquery) AS r0 FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') AND lexemes @@ '''harbour'''::tsquery 
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, 
ln(1 + (greatest(0.0, count(*)) + 0.5) / (greatest(0.0, count(*) FILTER (WHERE r0 > 0)) + 0.5)) AS i0
 FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id FROM weighed ORDER BY i0 * r0 / (r0 + share) DESC, id DESC LIMIT 40
-- next statement
WITH near AS MATERIALIZED (
            SELECT id FROM loom_memory WHERE superseded_by IS NULL AND place = ANY('{trip,""}') AND model = 'directions' AND dimension = 2
            ORDER BY (sketch <#> '[1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]'::halfvec) + 0 LIMIT 100
        )
        SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM near JOIN loom_memory_vectors USING (id)
        ORDER BY embedding <=> '[1.0,0.0]'::vector LIMIT 40
-- next statement
SELECT id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at, status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, task FROM loom_memory WHERE id = ANY('{3,6,1,4,2,5}'::int2[])
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, updated_at FROM loom_scoped_memory
WHERE place = ANY('{tree:run}') AND ('plan'::text IS NULL OR id = 'plan') ORDER BY place, id, version DESC
-- next statement
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with
) VALUES (
    'tree:run', 'plan', 1, 'sail at dawn (shared)', 'shared', '{run}', 'trip', 'run', 'run',
    NULL, NULL
)
ON CONFLICT DO NOTHING RETURNING updated_at
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, updated_at FROM loom_scoped_memory
WHERE place = ANY('{global}') AND ('plan'::text IS NULL OR id = 'plan') ORDER BY place, id, version DESC
-- next statement
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with
) VALUES (
    'global', 'plan', 1, 'sail at dawn (global)', 'global', '{run}', 'trip', 'run', 'run',
    NULL, NULL
)
ON CONFLICT DO NOTHING RETURNING updated_at
-- next statement
SELECT DISTINCT ON (place, id) id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, updated_at FROM loom_scoped_memory
WHERE place = ANY('{local:run,tree:run,global}') AND (NULL::text IS NULL OR id = NULL) ORDER BY place, id, version DESC
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
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)
-- next statement
SELECT sum(chunks), sum(length) FROM loom_knowledge_documents WHERE (cardinality('{}'::text[]) = 0 OR base = ANY('{}'))
-- next statement
SELECT word, (SELECT count(*) FROM (SELECT FROM loom_knowledge_chunks
    WHERE (cardinality('{}'::text[]) = 0 OR base = ANY('{}')) AND lexemes @@ ('''' || word || '''')::tsquery LIMIT 5000) AS few)
FROM unnest('{slow,down,harbour}'::text[]) AS word
-- next statement
WITH matched AS MATERIALIZED (
            SELECT id, 0.7 * (0.25 + 0.75 * length / 11.0) AS share, ts_rank('{1,1,1,1}', lexemes, '''slow'''::tsquery) AS r0, ts_rank('{1,1,1,1}', lexemes, '''down'''::tsquery) AS r1, ts_rank('{1,1,1,1}', lexemes, '''harbour'''::tsquery) AS r2 FROM loom_knowledge_chunks
            WHERE (cardinality('{}'::text[]) = 0 OR base = ANY('{}')) AND lexemes @@ '''slow'' | ''down'' | ''harbour'''::tsquery LIMIT 5000
        )
        SELECT id, (CASE WHEN r0 > 0 THEN 0.28768207245178085 ELSE 0 END + CASE WHEN r1 > 0 THEN 0.28768207245178085 ELSE 0 END + CASE WHEN r2 > 0 THEN 0.28768207245178085 ELSE 0 END) / 0.8630462173553426 FROM matched ORDER BY 0.28768207245178085 * r0 / (r0 + share) + 0.28768207245178085 * r1 / (r1 + share) + 0.28768207245178085 * r2 / (r2 + share) DESC, id LIMIT 40
-- next statement
SELECT id, 1 - (embedding <=> '[1.0,0.0]'::vector) FROM loom_knowledge_chunks
WHERE (cardinality('{}'::text[]) = 0 OR base = ANY('{}')) AND model = 'directions' AND dimension = 2
ORDER BY embedding <=> '[1.0,0.0]'::vector, id LIMIT 40
-- next statement
SELECT c.id, c.base, d.path, c.content, c.headings, c.first_line, c.last_line, c.page
FROM loom_knowledge_chunks c JOIN loom_knowledge_documents d ON d.id = c.document WHERE c.id = ANY('{1}'::int2[])
