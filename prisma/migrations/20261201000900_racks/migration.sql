-- Racks, and who has their units. Units are counted physically, from 1 at the bottom, whatever the labels
-- say, so that relabelling a rack moves nothing.
-- Lock order: machine, then rack (several by id), then rack_reservation.

CREATE EXTENSION IF NOT EXISTS btree_gist;

ALTER TABLE machine
  -- Rack units that it takes, from its feet up.
  ADD COLUMN height_units integer NOT NULL DEFAULT 1,
  -- A machine of full depth takes the front and the rear of its units.
  ADD COLUMN depth text NOT NULL DEFAULT 'full',
  -- What it draws at most; null: not known.
  ADD COLUMN power_watts integer,
  -- Whether it stands in a rack. Only the trigger on rack_reservation writes it; it exists so that an
  -- order can ask for it without a look at another table.
  ADD COLUMN installed boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT machine_height_units_range CHECK (height_units BETWEEN 1 AND 100),
  ADD CONSTRAINT machine_depth CHECK (depth IN ('half', 'full')),
  ADD CONSTRAINT machine_power_watts_range CHECK (power_watts BETWEEN 0 AND 1000000);

CREATE TABLE rack (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  site_id uuid NOT NULL REFERENCES site (id),
  name text NOT NULL,
  height_units integer NOT NULL,
  -- Where the labels begin, and which way they count.
  numbering text NOT NULL DEFAULT 'bottom_up',
  starting_unit integer NOT NULL DEFAULT 1,
  -- What may be drawn in it; null: no budget.
  power_budget_watts integer,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT rack_name_length CHECK (char_length(name) BETWEEN 1 AND 100),
  CONSTRAINT rack_height_units_range CHECK (height_units BETWEEN 1 AND 100),
  CONSTRAINT rack_numbering CHECK (numbering IN ('bottom_up', 'top_down')),
  CONSTRAINT rack_starting_unit_range CHECK (starting_unit BETWEEN 0 AND 1000),
  CONSTRAINT rack_power_budget_range CHECK (power_budget_watts BETWEEN 0 AND 1000000)
);
-- A name names one rack of a site.
CREATE UNIQUE INDEX rack_name ON rack (site_id, name);

-- Who has which units: a row is held for somebody with a cart, then the same row is where a machine is
-- installed. There is no instant between the two.
CREATE TABLE rack_reservation (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  rack_id uuid NOT NULL REFERENCES rack (id),
  -- The physically lowest unit, from 1.
  bottom_unit integer NOT NULL,
  height_units integer NOT NULL,
  face text NOT NULL,
  depth text NOT NULL,
  power_watts integer NOT NULL DEFAULT 0,
  purpose text NOT NULL,
  idempotency_key text NOT NULL,
  -- What was asked for, in canonical form: what "the same arguments" means when the key is used again.
  request jsonb NOT NULL,
  state text NOT NULL DEFAULT 'held',
  held_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL,
  settled_at timestamptz,
  machine_id uuid REFERENCES machine (id),
  removed_at timestamptz,
  units int4range NOT NULL GENERATED ALWAYS AS (int4range(bottom_unit, bottom_unit + height_units)) STORED,
  -- 0 is the front, 1 the rear; full depth is both.
  faces int4range NOT NULL GENERATED ALWAYS AS (
    CASE WHEN depth = 'full' THEN int4range(0, 2) WHEN face = 'front' THEN int4range(0, 1) ELSE int4range(1, 2) END) STORED,
  -- Takes its units away from everybody else.
  occupies boolean NOT NULL GENERATED ALWAYS AS (state = 'held' OR (state = 'promoted' AND removed_at IS NULL)) STORED,
  CONSTRAINT rack_reservation_bottom_unit_range CHECK (bottom_unit BETWEEN 1 AND 100),
  CONSTRAINT rack_reservation_height_units_range CHECK (height_units BETWEEN 1 AND 100),
  CONSTRAINT rack_reservation_face CHECK (face IN ('front', 'rear')),
  CONSTRAINT rack_reservation_depth CHECK (depth IN ('half', 'full')),
  CONSTRAINT rack_reservation_power_watts_range CHECK (power_watts BETWEEN 0 AND 1000000),
  CONSTRAINT rack_reservation_purpose_length CHECK (char_length(purpose) BETWEEN 1 AND 500),
  CONSTRAINT rack_reservation_idempotency_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 200),
  CONSTRAINT rack_reservation_state CHECK (state IN ('held', 'promoted', 'expired', 'cancelled')),
  CONSTRAINT rack_reservation_settled_when_over CHECK ((state = 'held') = (settled_at IS NULL)),
  CONSTRAINT rack_reservation_machine_when_promoted CHECK ((state = 'promoted') = (machine_id IS NOT NULL)),
  CONSTRAINT rack_reservation_removed_when_promoted CHECK (removed_at IS NULL OR (state = 'promoted' AND removed_at >= settled_at)),
  -- Invariant: a unit of a face is had once, whether it is held or installed. Judged at the end of a
  -- statement, so that one that moves several machines is judged as a whole.
  CONSTRAINT rack_units_are_had_once EXCLUDE USING gist (rack_id WITH =, faces WITH &&, units WITH &&) WHERE (occupies)
    DEFERRABLE INITIALLY IMMEDIATE
);
-- Invariant: a key names one reservation.
CREATE UNIQUE INDEX rack_reservation_idempotency_key ON rack_reservation (idempotency_key);
-- Invariant: a machine is in one place.
CREATE UNIQUE INDEX rack_reservation_one_place_per_machine ON rack_reservation (machine_id)
  WHERE state = 'promoted' AND removed_at IS NULL;
CREATE INDEX rack_reservation_by_rack ON rack_reservation (rack_id) WHERE occupies;
CREATE INDEX rack_reservation_deadline ON rack_reservation (expires_at, id) WHERE state = 'held';
CREATE TRIGGER rack_reservation_is_kept BEFORE DELETE ON rack_reservation
  FOR EACH ROW EXECUTE FUNCTION row_is_kept();

-- Invariant: a row keeps what it was made with, states move one way, and a lapsed hold is not promoted.
CREATE FUNCTION rack_reservation_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'held' THEN
      RAISE EXCEPTION 'a rack reservation begins as a hold'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_reservation_ends_once', TABLE = 'rack_reservation';
    END IF;
    RETURN NEW;
  END IF;
  IF NEW.id <> OLD.id OR NEW.idempotency_key <> OLD.idempotency_key OR NEW.request <> OLD.request OR NEW.held_at <> OLD.held_at
     OR NEW.expires_at <> OLD.expires_at OR (OLD.settled_at IS NOT NULL AND NEW.settled_at IS DISTINCT FROM OLD.settled_at)
     OR (OLD.machine_id IS NOT NULL AND NEW.machine_id IS DISTINCT FROM OLD.machine_id)
     OR (OLD.removed_at IS NOT NULL AND NEW.removed_at IS DISTINCT FROM OLD.removed_at)
     OR (NEW.state <> OLD.state AND OLD.state <> 'held') THEN
    RAISE EXCEPTION 'a rack reservation ends once, and keeps what it was made with'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_reservation_ends_once', TABLE = 'rack_reservation';
  END IF;
  IF NEW.state = 'promoted' AND OLD.state = 'held' AND OLD.expires_at <= clock_timestamp() THEN
    RAISE EXCEPTION 'the hold is past its deadline'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_reservation_deadline_is_kept', TABLE = 'rack_reservation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER rack_reservation_guard BEFORE INSERT OR UPDATE ON rack_reservation
  FOR EACH ROW EXECUTE FUNCTION rack_reservation_guard();

-- Invariants that need the rack and the machine beside the row: it lies within the rack, the rack's power
-- budget holds, and a machine fits the place it stands in. Judged when the statement is done, so that one
-- which moves several machines is judged as a whole. Locks the rack, so that two rows which each fit the
-- budget do not pass it together, and nobody shrinks the rack meanwhile. An overdue hold still counts
-- here: whoever wants its place expires it first.
CREATE FUNCTION rack_reservation_fits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_rack rack;
  v_machine machine;
BEGIN
  SELECT * INTO v_rack FROM rack WHERE id = NEW.rack_id FOR NO KEY UPDATE;
  IF NEW.bottom_unit + NEW.height_units - 1 > v_rack.height_units THEN
    RAISE EXCEPTION 'the rack has no such units'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_reservation_within_rack', TABLE = 'rack_reservation';
  END IF;
  IF v_rack.power_budget_watts < (
       SELECT coalesce(sum(o.power_watts), 0) FROM rack_reservation o WHERE o.rack_id = NEW.rack_id AND o.occupies) THEN
    RAISE EXCEPTION 'the rack''s power budget is used up'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_power_budget_is_kept', TABLE = 'rack_reservation';
  END IF;
  IF NEW.machine_id IS NOT NULL THEN
    SELECT * INTO v_machine FROM machine WHERE id = NEW.machine_id;
    IF v_machine.site_id <> v_rack.site_id OR v_machine.height_units > NEW.height_units
       OR (v_machine.depth = 'full' AND NEW.depth = 'half') THEN
      RAISE EXCEPTION 'the machine does not fit this place'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_reservation_machine_fits', TABLE = 'rack_reservation';
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER rack_reservation_fits AFTER INSERT OR UPDATE ON rack_reservation
  FOR EACH ROW WHEN (NEW.occupies) EXECUTE FUNCTION rack_reservation_fits();

-- Keeps machine.installed at what the rows say.
CREATE FUNCTION rack_reservation_installed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE machine SET installed = NEW.removed_at IS NULL
  WHERE id = NEW.machine_id AND installed <> (NEW.removed_at IS NULL);
  RETURN NULL;
END $$;
CREATE TRIGGER rack_reservation_installed AFTER UPDATE OF machine_id, removed_at ON rack_reservation
  FOR EACH ROW WHEN (NEW.machine_id IS NOT NULL) EXECUTE FUNCTION rack_reservation_installed();

-- Invariant: a rack is never made smaller or poorer than what stands in it, and does not leave its site.
CREATE FUNCTION rack_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.site_id <> OLD.site_id
     OR EXISTS (SELECT FROM rack_reservation o WHERE o.rack_id = NEW.id AND o.occupies AND upper(o.units) - 1 > NEW.height_units)
     OR NEW.power_budget_watts < (SELECT coalesce(sum(o.power_watts), 0) FROM rack_reservation o WHERE o.rack_id = NEW.id AND o.occupies) THEN
    RAISE EXCEPTION 'something that stands in the rack, or is reserved there, would not fit any more'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'rack_holds_what_it_has', TABLE = 'rack';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER rack_guard BEFORE UPDATE OF site_id, height_units, power_budget_watts ON rack
  FOR EACH ROW EXECUTE FUNCTION rack_guard();

-- Invariant: an installed machine fits its place, whatever is said of it.
CREATE FUNCTION machine_place_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT FROM rack_reservation o JOIN rack r ON r.id = o.rack_id
    WHERE o.machine_id = NEW.id AND o.state = 'promoted' AND o.removed_at IS NULL
      AND (NEW.site_id <> r.site_id OR NEW.height_units > o.height_units OR (NEW.depth = 'full' AND o.depth = 'half'))) THEN
    RAISE EXCEPTION 'the machine would not fit the place it stands in'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'machine_fits_its_place', TABLE = 'machine';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machine_place_guard BEFORE UPDATE OF site_id, height_units, depth ON machine
  FOR EACH ROW WHEN (OLD.installed) EXECUTE FUNCTION machine_place_guard();

-- What the rows mean at this moment: a hold past its deadline reads as expired at that deadline.
CREATE VIEW rack_reservation_now AS
SELECT o.id, o.rack_id, o.bottom_unit, o.height_units, o.face, o.depth, o.power_watts, o.purpose, o.idempotency_key, o.request,
       CASE WHEN o.state = 'held' AND o.expires_at <= statement_timestamp() THEN 'expired' ELSE o.state END AS state,
       o.held_at, o.expires_at,
       CASE WHEN o.state = 'held' AND o.expires_at <= statement_timestamp() THEN o.expires_at ELSE o.settled_at END AS settled_at,
       o.machine_id, o.removed_at, o.units, o.faces,
       o.occupies AND NOT (o.state = 'held' AND o.expires_at <= statement_timestamp()) AS occupies
FROM rack_reservation o;

-- The label of a physical unit, and back: its own inverse when the labels count down.
CREATE FUNCTION rack_label(r rack, p_unit integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE (r).numbering WHEN 'bottom_up' THEN (r).starting_unit + p_unit - 1
                            ELSE (r).starting_unit + (r).height_units - p_unit END
$$;
CREATE FUNCTION rack_unit(r rack, p_label integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE (r).numbering WHEN 'bottom_up' THEN p_label - (r).starting_unit + 1
                            ELSE (r).starting_unit + (r).height_units - p_label END
$$;

-- The faces that a place of this face and depth takes.
CREATE FUNCTION rack_faces(p_face text, p_depth text) RETURNS int4range LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_depth = 'full' THEN int4range(0, 2) WHEN p_face = 'front' THEN int4range(0, 1) ELSE int4range(1, 2) END
$$;

-- The free stretches of a rack on these faces at this moment, from the bottom: where the allocator, the
-- capacity and the search for space all look.
CREATE FUNCTION rack_gaps(p_rack uuid, p_faces int4range) RETURNS TABLE (bottom_unit integer, size integer)
LANGUAGE sql STABLE AS $$
  SELECT lower(gap), upper(gap) - lower(gap)
  FROM rack r,
       LATERAL unnest(int4multirange(int4range(1, r.height_units + 1)) - coalesce(
         (SELECT range_agg(o.units) FROM rack_reservation o
          WHERE o.rack_id = r.id AND o.occupies AND o.faces && p_faces
            AND (o.state = 'promoted' OR o.expires_at > statement_timestamp())), '{}')) gap
  WHERE r.id = p_rack
  ORDER BY 1
$$;
