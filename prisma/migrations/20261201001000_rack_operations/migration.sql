-- What can happen to rack units: one function a transition, one call a transaction. Each locks the
-- machine if there is one, then its racks (by id), then the rows it changes; judges deadlines with
-- clock_timestamp() under the lock; and changes a row only in the expected state. Under the rack's lock
-- callers come one after the other, so that each finds what the one before has left: they spread.
-- Twice at once: one wins, the other is told the end state that it finds, or the units that are gone.

-- Expires the overdue holds of a rack, so that whoever has locked it finds their units free.
CREATE FUNCTION rack_expire_overdue(p_rack uuid) RETURNS void LANGUAGE sql VOLATILE AS $$
  UPDATE rack_reservation SET state = 'expired', settled_at = expires_at
  WHERE rack_id = p_rack AND state = 'held' AND expires_at <= clock_timestamp()
$$;

-- What keeps a rack from one more place of this kind: nothing, or 'power_budget', and of the other two
-- 'no_free_units' or 'not_contiguous'.
CREATE FUNCTION rack_limits(p_rack uuid, p_faces int4range, p_height integer, p_power bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
  SELECT array_remove(ARRAY[
    CASE WHEN g.free < p_height THEN 'no_free_units' END,
    CASE WHEN g.free >= p_height AND g.largest < p_height THEN 'not_contiguous' END,
    CASE WHEN r.power_budget_watts < p_power + (
      SELECT coalesce(sum(o.power_watts), 0) FROM rack_reservation o
      WHERE o.rack_id = r.id AND o.occupies AND (o.state = 'promoted' OR o.expires_at > statement_timestamp()))
      THEN 'power_budget' END], NULL)
  FROM rack r, LATERAL (SELECT coalesce(sum(size), 0) AS free, coalesce(max(size), 0) AS largest FROM rack_gaps(r.id, p_faces)) g
  WHERE r.id = p_rack
$$;

CREATE TYPE rack_reserve_answer AS (
  -- 'reserved' | 'key_found' | 'not_found' | 'module_disabled' | 'outside' | 'occupied' | 'no_space'
  outcome text,
  reservation_id uuid,
  -- occupied: the units in the way, as labelled.
  units integer[],
  -- no_space: see rack_limits.
  limits text[]
);

-- Reserves units: those that begin at p_bottom_label, or (null) the tightest gap that fits, the lowest of
-- equals. Twice at once with one key: the second finds the key under the lock; with the same key on
-- another rack, rack_reservation_idempotency_key decides. A writer that bypasses the lock is decided by
-- rack_units_are_had_once, and the look is repeated, three times at most ('unsettled').
CREATE FUNCTION rack_reserve(
  p_rack uuid, p_height integer, p_bottom_label integer, p_face text, p_depth text, p_power integer,
  p_purpose text, p_key text, p_request jsonb, p_hold_seconds integer
) RETURNS rack_reserve_answer LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v_rack rack;
  v_faces int4range := rack_faces(p_face, p_depth);
  v_bottom integer;
  v_now timestamptz;
  v_constraint text;
  a rack_reserve_answer;
BEGIN
  SELECT * INTO v_rack FROM rack WHERE id = p_rack FOR NO KEY UPDATE;
  SELECT id INTO a.reservation_id FROM rack_reservation WHERE idempotency_key = p_key;
  IF FOUND THEN a.outcome := 'key_found'; RETURN a; END IF;
  IF v_rack.id IS NULL THEN a.outcome := 'not_found'; RETURN a; END IF;
  IF NOT module_enabled(NULL, 'datacenter') THEN a.outcome := 'module_disabled'; RETURN a; END IF;
  PERFORM rack_expire_overdue(p_rack);
  FOR v_round IN 1..3 LOOP
    IF p_bottom_label IS NULL THEN
      SELECT g.bottom_unit INTO v_bottom FROM rack_gaps(p_rack, v_faces) g
      WHERE g.size >= p_height ORDER BY g.size, g.bottom_unit LIMIT 1;
    ELSE
      v_bottom := rack_unit(v_rack, p_bottom_label);
      IF v_bottom < 1 OR v_bottom + p_height - 1 > v_rack.height_units THEN a.outcome := 'outside'; RETURN a; END IF;
      SELECT array_agg(rack_label(v_rack, u) ORDER BY rack_label(v_rack, u)) INTO a.units
      FROM generate_series(v_bottom, v_bottom + p_height - 1) u
      WHERE NOT EXISTS (SELECT FROM rack_gaps(p_rack, v_faces) g WHERE u >= g.bottom_unit AND u < g.bottom_unit + g.size);
      IF a.units IS NOT NULL THEN a.outcome := 'occupied'; RETURN a; END IF;
    END IF;
    a.limits := rack_limits(p_rack, v_faces, p_height, p_power);
    IF a.limits <> '{}' OR v_bottom IS NULL THEN a.outcome := 'no_space'; RETURN a; END IF;
    BEGIN
      v_now := clock_timestamp();
      INSERT INTO rack_reservation (rack_id, bottom_unit, height_units, face, depth, power_watts, purpose,
                                    idempotency_key, request, held_at, expires_at)
      VALUES (p_rack, v_bottom, p_height, p_face, p_depth, p_power, p_purpose, p_key, p_request,
              v_now, v_now + make_interval(secs => p_hold_seconds))
      RETURNING id INTO a.reservation_id;
      a.outcome := 'reserved';
      RETURN a;
    EXCEPTION WHEN unique_violation OR exclusion_violation THEN
      GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
      IF v_constraint = 'rack_reservation_idempotency_key' THEN
        SELECT id INTO a.reservation_id FROM rack_reservation WHERE idempotency_key = p_key;
        a.outcome := 'key_found';
        RETURN a;
      END IF;
      IF v_constraint <> 'rack_units_are_had_once' THEN RAISE; END IF;
    END;
  END LOOP;
  a.outcome := 'unsettled';
  RETURN a;
END $$;

CREATE TYPE rack_promote_answer AS (
  -- 'promoted' | 'not_found' | 'machine_not_found' | 'module_disabled' | 'settled' | 'expired' | 'placed' | 'misfit'
  outcome text,
  -- placed: where the machine stands.
  placement_id uuid,
  -- misfit: 'site' | 'height' | 'depth' | 'power'.
  misfits text[]
);

-- Turns a hold into the place of a machine: the same row, in the same transaction as every check.
CREATE FUNCTION rack_promote(p_reservation uuid, p_machine uuid) RETURNS rack_promote_answer
LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v rack_reservation;
  v_rack rack;
  v_machine machine;
  v_drawn bigint;
  v_now timestamptz;
  v_constraint text;
  a rack_promote_answer;
BEGIN
  SELECT * INTO v FROM rack_reservation WHERE id = p_reservation;
  IF NOT FOUND THEN a.outcome := 'not_found'; RETURN a; END IF;
  SELECT * INTO v_machine FROM machine WHERE id = p_machine FOR NO KEY UPDATE;
  IF NOT FOUND THEN a.outcome := 'machine_not_found'; RETURN a; END IF;
  SELECT * INTO v_rack FROM rack WHERE id = v.rack_id FOR NO KEY UPDATE;
  SELECT * INTO v FROM rack_reservation WHERE id = p_reservation FOR UPDATE;
  v_now := clock_timestamp();
  IF v.state = 'expired' OR (v.state = 'held' AND v.expires_at <= v_now) THEN a.outcome := 'expired'; RETURN a; END IF;
  IF v.state <> 'held' THEN a.outcome := 'settled'; RETURN a; END IF;
  IF NOT module_enabled(NULL, 'datacenter') THEN a.outcome := 'module_disabled'; RETURN a; END IF;
  SELECT id INTO a.placement_id FROM rack_reservation
  WHERE machine_id = p_machine AND state = 'promoted' AND removed_at IS NULL;
  IF FOUND THEN a.outcome := 'placed'; RETURN a; END IF;
  -- Overdue holds draw nothing any more.
  PERFORM rack_expire_overdue(v.rack_id);
  SELECT coalesce(sum(o.power_watts), 0) INTO v_drawn FROM rack_reservation o
  WHERE o.rack_id = v.rack_id AND o.occupies AND o.id <> v.id;
  a.misfits := array_remove(ARRAY[
    CASE WHEN v_machine.site_id <> v_rack.site_id THEN 'site' END,
    CASE WHEN v_machine.height_units > v.height_units THEN 'height' END,
    CASE WHEN v_machine.depth = 'full' AND v.depth = 'half' THEN 'depth' END,
    CASE WHEN v_rack.power_budget_watts < v_drawn + coalesce(v_machine.power_watts, v.power_watts) THEN 'power' END], NULL);
  IF a.misfits <> '{}' THEN a.outcome := 'misfit'; RETURN a; END IF;
  BEGIN
    UPDATE rack_reservation
    SET state = 'promoted', settled_at = v_now, machine_id = p_machine, power_watts = coalesce(v_machine.power_watts, v.power_watts)
    WHERE id = p_reservation;
  EXCEPTION WHEN check_violation THEN
    -- The arbiter judged a moment later than the line above.
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    IF v_constraint = 'rack_reservation_deadline_is_kept' THEN a.outcome := 'expired'; RETURN a; END IF;
    RAISE;
  END;
  a.outcome := 'promoted';
  RETURN a;
END $$;

-- 'cancelled' | 'not_found' | 'settled' | 'expired'. Works with the switch closed.
CREATE FUNCTION rack_cancel(p_reservation uuid) RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v rack_reservation;
BEGIN
  PERFORM FROM rack WHERE id = (SELECT rack_id FROM rack_reservation WHERE id = p_reservation) FOR NO KEY UPDATE;
  SELECT * INTO v FROM rack_reservation WHERE id = p_reservation FOR UPDATE;
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  IF v.state = 'expired' OR (v.state = 'held' AND v.expires_at <= clock_timestamp()) THEN RETURN 'expired'; END IF;
  IF v.state <> 'held' THEN RETURN 'settled'; END IF;
  UPDATE rack_reservation SET state = 'cancelled', settled_at = clock_timestamp() WHERE id = p_reservation;
  RETURN 'cancelled';
END $$;

-- 'expired' | 'busy' | 'not_due'. One overdue hold, for the sweeper; passes over what somebody has locked.
CREATE FUNCTION rack_reservation_expire(p_reservation uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM rack_reservation WHERE id = p_reservation FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 'busy'; END IF;
  UPDATE rack_reservation SET state = 'expired', settled_at = expires_at
  WHERE id = p_reservation AND state = 'held' AND expires_at <= clock_timestamp();
  IF NOT FOUND THEN RETURN 'not_due'; END IF;
  RETURN 'expired';
END $$;

-- 'removed' | 'already_removed' | 'not_found'. The row stays, and says when.
CREATE FUNCTION placement_remove(p_placement uuid) RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v rack_reservation;
BEGIN
  SELECT * INTO v FROM rack_reservation WHERE id = p_placement AND state = 'promoted';
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  PERFORM FROM machine WHERE id = v.machine_id FOR NO KEY UPDATE;
  PERFORM FROM rack WHERE id = v.rack_id FOR NO KEY UPDATE;
  UPDATE rack_reservation SET removed_at = clock_timestamp() WHERE id = p_placement AND removed_at IS NULL;
  IF NOT FOUND THEN RETURN 'already_removed'; END IF;
  RETURN 'removed';
END $$;

CREATE TYPE placement_move_answer AS (
  -- 'moved' | 'not_found' | 'module_disabled' | 'outside' | 'occupied' | 'misfit' | 'power'
  outcome text,
  -- The moves that stand in the way of it, counted from 0: not found, outside, without room, at another site.
  moves integer[],
  -- occupied: the units in the way, as labelled, over all of them.
  units integer[]
);

-- Moves placements, all of them or none: p_moves is [{placement, rack, bottom, face}] (bottom as labelled in
-- the new rack). What they leave is free for each other: a swap works. Locks the machines, the racks and
-- the rows, each by id. Twice at once: one after the other, each judged by what it finds.
CREATE FUNCTION placements_move(p_moves jsonb) RETURNS placement_move_answer
LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v_placements uuid[];
  v_racks uuid[];
  v_labels integer[];
  v_faces text[];
  v_constraint text;
  a placement_move_answer;
BEGIN
  IF NOT module_enabled(NULL, 'datacenter') THEN a.outcome := 'module_disabled'; RETURN a; END IF;
  SELECT array_agg((m ->> 'placement')::uuid ORDER BY n), array_agg((m ->> 'rack')::uuid ORDER BY n),
         array_agg((m ->> 'bottom')::integer ORDER BY n), array_agg(m ->> 'face' ORDER BY n)
  INTO v_placements, v_racks, v_labels, v_faces
  FROM jsonb_array_elements(p_moves) WITH ORDINALITY AS moves (m, n);
  PERFORM FROM machine WHERE id IN (SELECT machine_id FROM rack_reservation WHERE id = ANY (v_placements)) ORDER BY id FOR NO KEY UPDATE;
  PERFORM FROM rack WHERE id = ANY (v_racks) OR id IN (SELECT rack_id FROM rack_reservation WHERE id = ANY (v_placements))
  ORDER BY id FOR NO KEY UPDATE;
  PERFORM FROM rack_reservation WHERE id = ANY (v_placements) ORDER BY id FOR UPDATE;
  PERFORM rack_expire_overdue(id) FROM rack WHERE id = ANY (v_racks);

  SELECT array_agg(t.n - 1 ORDER BY t.n) INTO a.moves
  FROM unnest(v_placements, v_racks) WITH ORDINALITY AS t (placement, rack, n)
  LEFT JOIN rack_reservation o ON o.id = t.placement AND o.state = 'promoted' AND o.removed_at IS NULL
  LEFT JOIN rack r ON r.id = t.rack
  WHERE o.id IS NULL OR r.id IS NULL;
  IF a.moves IS NOT NULL THEN a.outcome := 'not_found'; RETURN a; END IF;

  SELECT array_agg(t.n - 1 ORDER BY t.n) INTO a.moves
  FROM unnest(v_placements, v_racks, v_labels) WITH ORDINALITY AS t (placement, rack, label, n)
  JOIN rack_reservation o ON o.id = t.placement JOIN rack r ON r.id = t.rack
  WHERE rack_unit(r, t.label) < 1 OR rack_unit(r, t.label) + o.height_units - 1 > r.height_units;
  IF a.moves IS NOT NULL THEN a.outcome := 'outside'; RETURN a; END IF;

  SELECT array_agg(t.n - 1 ORDER BY t.n) INTO a.moves
  FROM unnest(v_placements, v_racks) WITH ORDINALITY AS t (placement, rack, n)
  JOIN rack_reservation o ON o.id = t.placement JOIN machine m ON m.id = o.machine_id JOIN rack r ON r.id = t.rack
  WHERE m.site_id <> r.site_id;
  IF a.moves IS NOT NULL THEN a.outcome := 'misfit'; RETURN a; END IF;

  WITH target AS (
    SELECT t.n, t.rack, r, rack_faces(t.face, o.depth) AS faces,
           int4range(rack_unit(r, t.label), rack_unit(r, t.label) + o.height_units) AS units
    FROM unnest(v_placements, v_racks, v_labels, v_faces) WITH ORDINALITY AS t (placement, rack, label, face, n)
    JOIN rack_reservation o ON o.id = t.placement JOIN rack r ON r.id = t.rack
  ), clash AS (
    SELECT t.n, t.r, t.units * o.units AS units FROM target t
    JOIN rack_reservation o ON o.rack_id = t.rack AND o.occupies AND o.faces && t.faces AND o.units && t.units AND o.id <> ALL (v_placements)
    UNION ALL
    SELECT t.n, t.r, t.units * u.units FROM target t
    JOIN target u ON u.rack = t.rack AND u.n <> t.n AND u.faces && t.faces AND u.units && t.units
  )
  SELECT array_agg(DISTINCT c.n - 1 ORDER BY c.n - 1), array_agg(DISTINCT rack_label(c.r, u) ORDER BY rack_label(c.r, u))
  INTO a.moves, a.units
  FROM clash c, LATERAL generate_series(lower(c.units), upper(c.units) - 1) u;
  IF a.moves IS NOT NULL THEN a.outcome := 'occupied'; RETURN a; END IF;

  BEGIN
    UPDATE rack_reservation o SET rack_id = t.rack, bottom_unit = rack_unit(r, t.label), face = t.face
    FROM unnest(v_placements, v_racks, v_labels, v_faces) AS t (placement, rack, label, face)
    JOIN rack r ON r.id = t.rack
    WHERE o.id = t.placement;
  EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    IF v_constraint <> 'rack_power_budget_is_kept' THEN RAISE; END IF;
    a.outcome := 'power';
    RETURN a;
  END;
  a.outcome := 'moved';
  RETURN a;
END $$;

CREATE TYPE geometry_answer AS (
  -- 'set' | 'not_found' | 'name_taken' | 'conflict'
  outcome text,
  -- conflict: the rows that would not fit any more, and 'units' | 'power' for what they lack.
  conflicts uuid[],
  lacking text[]
);

-- Edits a rack. What stands in it, and what is reserved, must still fit; else nothing changes and the rows
-- are listed. Null keeps a value; p_budget_given says whether the budget is meant, which may be null itself.
CREATE FUNCTION rack_edit(
  p_rack uuid, p_name text, p_height integer, p_numbering text, p_starting_unit integer, p_budget_given boolean, p_budget integer
) RETURNS geometry_answer LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v rack;
  v_constraint text;
  a geometry_answer;
BEGIN
  SELECT * INTO v FROM rack WHERE id = p_rack FOR NO KEY UPDATE;
  IF NOT FOUND THEN a.outcome := 'not_found'; RETURN a; END IF;
  PERFORM rack_expire_overdue(p_rack);
  v.height_units := coalesce(p_height, v.height_units);
  IF p_budget_given THEN v.power_budget_watts := p_budget; END IF;
  SELECT array_agg(o.id ORDER BY o.bottom_unit) INTO a.conflicts FROM rack_reservation o
  WHERE o.rack_id = p_rack AND o.occupies AND upper(o.units) - 1 > v.height_units;
  IF a.conflicts IS NOT NULL THEN a.lacking := ARRAY['units']; END IF;
  IF v.power_budget_watts < (SELECT coalesce(sum(o.power_watts), 0) FROM rack_reservation o WHERE o.rack_id = p_rack AND o.occupies) THEN
    a.lacking := a.lacking || ARRAY['power'];
    SELECT array_agg(o.id ORDER BY o.bottom_unit) INTO a.conflicts FROM rack_reservation o
    WHERE o.rack_id = p_rack AND o.occupies AND (o.power_watts > 0 OR o.id = ANY (a.conflicts));
  END IF;
  IF a.lacking IS NOT NULL THEN a.outcome := 'conflict'; RETURN a; END IF;
  BEGIN
    UPDATE rack SET name = coalesce(p_name, name), height_units = v.height_units, numbering = coalesce(p_numbering, numbering),
                    starting_unit = coalesce(p_starting_unit, starting_unit), power_budget_watts = v.power_budget_watts
    WHERE id = p_rack;
  EXCEPTION WHEN unique_violation THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    IF v_constraint <> 'rack_name' THEN RAISE; END IF;
    a.outcome := 'name_taken';
    RETURN a;
  END;
  a.outcome := 'set';
  RETURN a;
END $$;

-- Says what a machine's height, depth or draw is. An installed machine's place grows with it, upwards and
-- to the other face, if that is free and the budget allows it; else nothing changes, and what is in the
-- way (and the place itself) is listed. A place never shrinks by it. Null keeps a value.
CREATE FUNCTION machine_edit_geometry(
  p_machine uuid, p_height integer, p_depth text, p_power_given boolean, p_power integer
) RETURNS geometry_answer LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v machine;
  v_place rack_reservation;
  v_rack rack;
  v_units int4range;
  v_faces int4range;
  a geometry_answer;
BEGIN
  SELECT * INTO v FROM machine WHERE id = p_machine FOR NO KEY UPDATE;
  IF NOT FOUND THEN a.outcome := 'not_found'; RETURN a; END IF;
  v.height_units := coalesce(p_height, v.height_units);
  v.depth := coalesce(p_depth, v.depth);
  IF p_power_given THEN v.power_watts := p_power; END IF;
  SELECT * INTO v_place FROM rack_reservation WHERE machine_id = p_machine AND state = 'promoted' AND removed_at IS NULL;
  IF FOUND THEN
    SELECT * INTO v_rack FROM rack WHERE id = v_place.rack_id FOR NO KEY UPDATE;
    SELECT * INTO v_place FROM rack_reservation WHERE id = v_place.id FOR UPDATE;
    PERFORM rack_expire_overdue(v_rack.id);
    v_place.height_units := greatest(v_place.height_units, v.height_units);
    v_place.depth := CASE WHEN v.depth = 'full' THEN 'full' ELSE v_place.depth END;
    v_place.power_watts := coalesce(v.power_watts, v_place.power_watts);
    v_units := int4range(v_place.bottom_unit, v_place.bottom_unit + v_place.height_units);
    v_faces := rack_faces(v_place.face, v_place.depth);
    SELECT array_agg(o.id ORDER BY o.bottom_unit) INTO a.conflicts FROM rack_reservation o
    WHERE o.rack_id = v_rack.id AND o.occupies AND o.id <> v_place.id AND o.units && v_units AND o.faces && v_faces;
    IF a.conflicts IS NOT NULL OR upper(v_units) - 1 > v_rack.height_units THEN
      a.lacking := ARRAY['units'];
      a.conflicts := v_place.id || a.conflicts;
    END IF;
    IF v_rack.power_budget_watts < v_place.power_watts + (
         SELECT coalesce(sum(o.power_watts), 0) FROM rack_reservation o WHERE o.rack_id = v_rack.id AND o.occupies AND o.id <> v_place.id) THEN
      a.lacking := a.lacking || ARRAY['power'];
      a.conflicts := coalesce(a.conflicts, ARRAY[v_place.id]);
    END IF;
    IF a.lacking IS NOT NULL THEN a.outcome := 'conflict'; RETURN a; END IF;
    -- The place first, so that the machine fits it at every moment.
    UPDATE rack_reservation SET height_units = v_place.height_units, depth = v_place.depth, power_watts = v_place.power_watts
    WHERE id = v_place.id;
  END IF;
  UPDATE machine SET height_units = v.height_units, depth = v.depth, power_watts = v.power_watts WHERE id = p_machine;
  a.outcome := 'set';
  RETURN a;
END $$;
