-- Loom 0.2.0, schema 1
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
VALUES ('\xfcda6aa0b301c42a93a131f2c1b0d8ac9c339d9a1eb924ac143a8fc10bedef7d'::bytea, 'run/finished', 'run', 1, 'd14bd25ca5b64cdd9c5a80a6bbc1c920'::uuid)
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
VALUES ('\xd6c0c0e73b5ab11cbf149e4cb0fb885d7473ea3f20266ac873f7a2de7d86ce93'::bytea, 'run/lost', 'run', 1, '52309aff70794ea8b0e957da9ed00ec0'::uuid)
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
