-- Which form of a memory's text has been embedded. 0: the speaker behind the text, and no short texts, as before 0.4.
ALTER TABLE loom_memory ADD COLUMN told_form smallint NOT NULL DEFAULT 0;
-- Upkeep embeds the others again, in the background.
CREATE INDEX loom_memory_old_form ON loom_memory (id) WHERE told_form < 1 AND layer <> 'L1' AND superseded_by IS NULL;
