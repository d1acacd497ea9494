-- Knowledge bases: folders of documents that runs look things up in. `vector` is there since the memory's own step.
CREATE TABLE loom_knowledge (
    name text PRIMARY KEY,
    folder text NOT NULL,                           -- where its documents were taken from last
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE loom_knowledge_documents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    base text NOT NULL REFERENCES loom_knowledge ON DELETE CASCADE,
    path text NOT NULL,                             -- within the folder
    digest text NOT NULL,                           -- of the file and of how it was cut: what decides whether it is read again
    chunks int NOT NULL,
    length int NOT NULL,                            -- lexemes of all its chunks
    stored_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (base, path)
);

CREATE TABLE loom_knowledge_chunks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    base text NOT NULL,
    document bigint NOT NULL REFERENCES loom_knowledge_documents ON DELETE CASCADE,
    ordinal int NOT NULL,
    headings text[] NOT NULL,
    first_line int NOT NULL,                        -- 0: it has no lines that a person could count
    last_line int NOT NULL,
    page int,
    content text NOT NULL,
    told text NOT NULL,                             -- what is embedded: the content below the names it stands under
    lexemes tsvector NOT NULL,
    length int NOT NULL,                            -- how many lexemes
    model text,                                     -- of the vector
    dimension int,
    embedding vector,
    CHECK ((embedding IS NULL) = (model IS NULL))
) WITH (toast_tuple_target = 8160);
-- A vector stays in its row: looking for it elsewhere is what a comparison costs most.
ALTER TABLE loom_knowledge_chunks ALTER COLUMN embedding SET STORAGE EXTERNAL;

CREATE INDEX loom_knowledge_chunks_document ON loom_knowledge_chunks (document, ordinal);
CREATE INDEX loom_knowledge_chunks_near ON loom_knowledge_chunks (base, model, dimension) WHERE model IS NOT NULL;
CREATE INDEX loom_knowledge_chunks_without_vector ON loom_knowledge_chunks (base, id) WHERE model IS NULL;
CREATE INDEX loom_knowledge_chunks_words ON loom_knowledge_chunks USING gin (lexemes);
