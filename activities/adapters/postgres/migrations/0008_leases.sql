-- Until when an attempt counts as alive unless its worker renews this. NULL: it has no lease, or has given it back.
ALTER TABLE loom_effects ADD COLUMN alive_until timestamptz;
