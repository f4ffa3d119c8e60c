-- Orders may ask for machines that stand in a rack, and machines have a height, a depth and a draw: the
-- view, the predicate, the allocator and the import learn of it. The functions below replace those of
-- 20261201000300, 000400 and 000600; their headers hold as they stand there.

ALTER TYPE machine_requirements ADD ATTRIBUTE installed boolean;

CREATE OR REPLACE VIEW machine_now AS
SELECT m.id, m.asset_tag, m.site_id, s.code AS site_code, m.location, m.manufacturer, m.model,
       m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.monthly_price_cents, m.status,
       CASE WHEN b.id IS NOT NULL THEN 'bound'
            WHEN r.id IS NOT NULL THEN 'held'
            WHEN m.status <> 'ready' THEN 'not_ready'
            ELSE 'free' END AS availability,
       r.id AS reservation_id, r.expires_at AS held_until, b.id AS binding_id,
       -- Free, but for a hold past its deadline that nobody has swept: sold after the truly free ones.
       m.occupancy = 'held' AND r.id IS NULL AS overdue,
       m.height_units, m.depth, m.power_watts, m.installed
FROM machine m
JOIN site s ON s.id = m.site_id
LEFT JOIN reservation r ON r.machine_id = m.id AND r.state = 'held' AND r.expires_at > statement_timestamp()
LEFT JOIN service_binding b ON b.machine_id = m.id AND b.released_at IS NULL;

-- The predicate: every reason why hardware never fits an order, empty when it does. The allocator,
-- the preview and a refusal's counts all call this one function; being one expression, the planner
-- puts it in place. Whether a fitting machine is taken is not asked here (see machine_rejections).
CREATE FUNCTION machine_misfits(
  site_code text, manufacturer text, model text, cpu_cores integer, memory_gib integer,
  storage_gib integer, labels text[], status text, installed boolean, r machine_requirements
) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT array_remove(ARRAY[
    CASE WHEN site_code <> (r).site_code THEN 'wrong_site' END,
    CASE WHEN manufacturer <> (r).manufacturer THEN 'wrong_manufacturer' END,
    CASE WHEN model <> (r).model THEN 'wrong_model' END,
    CASE WHEN cpu_cores < (r).min_cpu_cores THEN 'too_few_cores' END,
    CASE WHEN memory_gib < (r).min_memory_gib THEN 'too_little_memory' END,
    CASE WHEN storage_gib < (r).min_storage_gib THEN 'too_little_storage' END,
    CASE WHEN NOT labels @> coalesce((r).labels, '{}') THEN 'missing_label' END,
    CASE WHEN (r).installed AND NOT installed THEN 'not_installed' END,
    CASE WHEN status <> 'ready' THEN 'not_ready' END
  ], NULL)
$$;

-- Every reason that excludes a machine now: what never fits, and who has it.
CREATE OR REPLACE FUNCTION machine_rejections(m machine_now, r machine_requirements) RETURNS text[]
LANGUAGE sql STABLE AS $$
  SELECT machine_misfits((m).site_code, (m).manufacturer, (m).model, (m).cpu_cores, (m).memory_gib,
                         (m).storage_gib, (m).labels, (m).status, (m).installed, r)
      || CASE WHEN (m).availability IN ('held', 'bound') THEN ARRAY[(m).availability] ELSE '{}' END
$$;

-- The next machine on the shelf that fits, after a given place in the order of best fit. The
-- conditions on single columns only narrow the index range; machine_misfits is what decides. (The site
-- is decided by the range itself, and judged again under the lock.)
CREATE OR REPLACE FUNCTION machine_next_on_shelf(
  r machine_requirements, p_site_id uuid,
  p_after_cores integer, p_after_memory integer, p_after_storage integer, p_after_id uuid
) RETURNS TABLE (id uuid, cpu_cores integer, memory_gib integer, storage_gib integer)
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
  IF p_site_id IS NOT NULL THEN
    RETURN QUERY
    SELECT m.id, m.cpu_cores, m.memory_gib, m.storage_gib FROM machine m
    WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.site_id = p_site_id
      AND (m.cpu_cores, m.memory_gib, m.storage_gib, m.id) > (p_after_cores, p_after_memory, p_after_storage, p_after_id)
      AND m.memory_gib >= coalesce(r.min_memory_gib, 0) AND m.storage_gib >= coalesce(r.min_storage_gib, 0)
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, m.installed, r) = '{}'
    ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1;
  ELSIF r.model IS NOT NULL THEN
    RETURN QUERY
    SELECT m.id, m.cpu_cores, m.memory_gib, m.storage_gib FROM machine m
    WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.model = r.model
      AND (m.cpu_cores, m.memory_gib, m.storage_gib, m.id) > (p_after_cores, p_after_memory, p_after_storage, p_after_id)
      AND m.memory_gib >= coalesce(r.min_memory_gib, 0) AND m.storage_gib >= coalesce(r.min_storage_gib, 0)
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, m.installed, r) = '{}'
    ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1;
  ELSE
    RETURN QUERY
    SELECT m.id, m.cpu_cores, m.memory_gib, m.storage_gib FROM machine m
    WHERE m.status = 'ready' AND m.occupancy = 'free'
      AND (m.cpu_cores, m.memory_gib, m.storage_gib, m.id) > (p_after_cores, p_after_memory, p_after_storage, p_after_id)
      AND m.memory_gib >= coalesce(r.min_memory_gib, 0) AND m.storage_gib >= coalesce(r.min_storage_gib, 0)
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, m.installed, r) = '{}'
    ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1;
  END IF;
END $$;

-- One try for one machine, inside a savepoint (the block with EXCEPTION).
-- outcome: 'won'     the hold is in, and returned;
--          'skipped' somebody has its row or its overdue hold locked, or took it a moment ago: no attempt;
--          'lost'    the machine was lost in the insert: an attempt;
--          'key'     the key was taken meanwhile.
-- Any other violation is a bug and is thrown. p_overdue: the machine is wanted for the overdue hold that
-- stands on it, which is expired here, by the one who takes the machine. The lock's WHERE is judged by
-- the row's newest version, so that a machine that was just taken is not even locked.
CREATE OR REPLACE FUNCTION machine_try_hold(
  p_machine uuid, p_organization uuid, p_order_reference text, p_key text, p_requirements jsonb,
  r machine_requirements, p_hold_seconds integer, p_skipped integer, p_lost integer, p_overdue boolean,
  OUT outcome text, OUT reservation jsonb
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_machine machine;
  v_hold uuid;
  v_site_code text;
  v_now timestamptz;
  v_constraint text;
BEGIN
  SELECT m.* INTO v_machine FROM machine m
  WHERE m.id = p_machine AND m.status = 'ready' AND m.occupancy = CASE WHEN p_overdue THEN 'held' ELSE 'free' END
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    outcome := 'skipped';
    RETURN;
  END IF;
  IF p_overdue THEN
    SELECT h.id INTO v_hold FROM reservation h
    WHERE h.machine_id = p_machine AND h.state = 'held' AND h.expires_at <= clock_timestamp()
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RAISE EXCEPTION USING ERRCODE = 'HF002', MESSAGE = 'let go'; END IF;
    UPDATE reservation h SET state = 'expired', settled_at = h.expires_at WHERE h.id = v_hold;
  END IF;
  SELECT s.code INTO v_site_code FROM site s WHERE s.id = v_machine.site_id;
  IF machine_misfits(v_site_code, v_machine.manufacturer, v_machine.model, v_machine.cpu_cores,
                     v_machine.memory_gib, v_machine.storage_gib, v_machine.labels, v_machine.status, v_machine.installed, r) <> '{}' THEN
    RAISE EXCEPTION USING ERRCODE = 'HF002', MESSAGE = 'let go';
  END IF;
  v_now := clock_timestamp();
  INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements,
                           held_at, hold_seconds, expires_at, choice)
  VALUES (p_organization, p_machine, p_order_reference, p_key, p_requirements,
          v_now, p_hold_seconds, v_now + make_interval(secs => p_hold_seconds),
          jsonb_build_object(
            'rank', p_skipped + p_lost + 1, 'skipped', p_skipped, 'lostRaces', p_lost,
            'assetTag', v_machine.asset_tag, 'siteCode', v_site_code,
            'manufacturer', v_machine.manufacturer, 'model', v_machine.model,
            'cpuCores', v_machine.cpu_cores, 'memoryGib', v_machine.memory_gib,
            'storageGib', v_machine.storage_gib, 'labels', v_machine.labels,
            'explanation', format(
              'The closest fit that could be had: %s %s at %s with %s cores (%s asked), %s GiB of memory (%s asked) and %s GiB of storage (%s asked).%s%s',
              v_machine.manufacturer, v_machine.model, v_site_code,
              v_machine.cpu_cores, coalesce(r.min_cpu_cores::text, 'any'),
              v_machine.memory_gib, coalesce(r.min_memory_gib::text, 'any'),
              v_machine.storage_gib, coalesce(r.min_storage_gib::text, 'any'),
              CASE WHEN p_skipped > 0 THEN format(' Passed over because other orders had them at that moment: %s.', p_skipped) ELSE '' END,
              CASE WHEN p_lost > 0 THEN format(' Lost to faster orders before this one was won: %s.', p_lost) ELSE '' END)))
  RETURNING to_jsonb(reservation.*) INTO machine_try_hold.reservation;
  outcome := 'won';
EXCEPTION
WHEN SQLSTATE 'HF002' THEN
  outcome := 'skipped';
WHEN unique_violation OR exclusion_violation THEN
  GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
  CASE v_constraint
    WHEN 'reservation_one_hold_per_machine' THEN outcome := 'lost';
    WHEN 'machine_never_held_and_bound' THEN outcome := 'lost';
    WHEN 'reservation_idempotency_key' THEN outcome := 'key';
    ELSE RAISE;
  END CASE;
END $$;

-- outcome: 'reserved'              with the new reservation;
--          'key_found'             the key has a reservation (its id in found_id);
--          'unknown_organization', 'module_disabled';
--          'hold_limit'            with the limit in force;
--          'cooling_down'          with the instant from which a repeat is accepted;
--          'nothing_won'           with what was passed over and lost, and whether the walk was cut
--                                  off by its bounds (25 candidates, 5 attempts).
CREATE OR REPLACE FUNCTION reserve_machine(
  p_organization uuid, p_order_reference text, p_key text, p_requirements jsonb,
  p_hold_seconds integer, p_default_hold_limit integer, p_cool_down_seconds integer
) RETURNS TABLE (
  outcome text, reservation jsonb, found_id uuid, skipped integer, lost_races integer,
  cut_off boolean, hold_limit integer, retry_at timestamptz
) LANGUAGE plpgsql VOLATILE ROWS 1
-- Only the organization is waited for, and its orders take milliseconds; whoever waits keeps a connection.
SET lock_timeout = '1s'
-- Every statement here, and in what it calls, has one right plan: its index, in the index's order.
-- Planned once a connection instead of once a call. Statistics would mislead: the shelf and the holds
-- change by the second, and start empty.
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
-- Before PostgreSQL 18 a plan that cannot do without what is turned off looks dear enough to be compiled.
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  c_candidates CONSTANT integer := 25;
  c_attempts CONSTANT integer := 5;
  c_first_id CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
  c_last_id CONSTANT uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  r machine_requirements := jsonb_populate_record(NULL::machine_requirements, p_requirements);
  -- Where this order enters a group of machines that fit equally well, so that simultaneous orders
  -- do not all queue at the same door.
  v_start uuid := md5(p_organization::text || p_key)::uuid;
  v_site_id uuid;
  v_limit integer;
  v_enabled boolean;
  v_held integer;
  v_last_hold timestamptz;
  v_group record;
  v_candidate record;
  v_place uuid;
  v_outcome text := 'none';
  v_reservation jsonb;
  v_seen integer := 0;
  v_skipped integer := 0;
  v_lost integer := 0;
  v_cut_off boolean := false;
  v_now timestamptz;
BEGIN
  SELECT coalesce(o.hold_limit, p_default_hold_limit) INTO v_limit
  FROM organization o WHERE o.id = p_organization FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'unknown_organization', NULL::jsonb, NULL::uuid, 0, 0, false, NULL::integer, NULL::timestamptz;
    RETURN;
  END IF;

  v_now := clock_timestamp();
  SELECT (SELECT k.id FROM reservation k WHERE k.organization_id = p_organization AND k.idempotency_key = p_key),
         module_enabled(p_organization, 'datacenter'),
         (SELECT count(*)::integer FROM reservation h
          WHERE h.organization_id = p_organization AND h.settled_at IS NULL AND h.expires_at > v_now),
         (SELECT l.held_at FROM reservation l WHERE p_cool_down_seconds > 0 AND l.organization_id = p_organization
          ORDER BY l.held_at DESC LIMIT 1),
         (SELECT s.id FROM site s WHERE s.code = r.site_code)
  INTO found_id, v_enabled, v_held, v_last_hold, v_site_id;
  IF found_id IS NOT NULL THEN
    RETURN QUERY SELECT 'key_found', NULL::jsonb, found_id, 0, 0, false, NULL::integer, NULL::timestamptz;
    RETURN;
  END IF;
  IF NOT v_enabled THEN
    RETURN QUERY SELECT 'module_disabled', NULL::jsonb, NULL::uuid, 0, 0, false, NULL::integer, NULL::timestamptz;
    RETURN;
  END IF;
  IF v_held >= v_limit THEN
    RETURN QUERY SELECT 'hold_limit', NULL::jsonb, NULL::uuid, 0, 0, false, v_limit, NULL::timestamptz;
    RETURN;
  END IF;
  IF v_last_hold + make_interval(secs => p_cool_down_seconds) > v_now THEN
    RETURN QUERY SELECT 'cooling_down', NULL::jsonb, NULL::uuid, 0, 0, false, NULL::integer,
                        v_last_hold + make_interval(secs => p_cool_down_seconds);
    RETURN;
  END IF;
  -- A site that does not exist has no shelf.
  IF r.site_code IS NOT NULL AND v_site_id IS NULL THEN
    RETURN QUERY SELECT 'nothing_won', NULL::jsonb, NULL::uuid, 0, 0, false, NULL::integer, NULL::timestamptz;
    RETURN;
  END IF;

  -- First the machines that are truly free, group by group of equal fit, each group entered at
  -- v_start and wrapped once.
  SELECT * INTO v_group FROM machine_next_on_shelf(r, v_site_id, coalesce(r.min_cpu_cores, 0), 0, 0, c_first_id);
  <<walk>>
  WHILE v_group.id IS NOT NULL LOOP
    FOR v_half IN 1..2 LOOP
      v_place := CASE v_half WHEN 1 THEN v_start ELSE c_first_id END;
      LOOP
        SELECT * INTO v_candidate FROM machine_next_on_shelf(
          r, v_site_id, v_group.cpu_cores, v_group.memory_gib, v_group.storage_gib, v_place);
        EXIT WHEN v_candidate.id IS NULL OR v_candidate.cpu_cores <> v_group.cpu_cores
          OR v_candidate.memory_gib <> v_group.memory_gib OR v_candidate.storage_gib <> v_group.storage_gib
          OR (v_half = 2 AND v_candidate.id > v_start);
        v_place := v_candidate.id;
        IF v_seen = c_candidates OR v_lost = c_attempts THEN
          v_cut_off := true;
          EXIT walk;
        END IF;
        v_seen := v_seen + 1;
        SELECT t.outcome, t.reservation INTO v_outcome, v_reservation FROM machine_try_hold(v_candidate.id, p_organization, p_order_reference, p_key,
          p_requirements, r, p_hold_seconds, v_skipped, v_lost, false) t;
        EXIT walk WHEN v_outcome IN ('won', 'key');
        v_skipped := v_skipped + (v_outcome = 'skipped')::integer;
        v_lost := v_lost + (v_outcome = 'lost')::integer;
      END LOOP;
    END LOOP;
    SELECT * INTO v_group FROM machine_next_on_shelf(
      r, v_site_id, v_group.cpu_cores, v_group.memory_gib, v_group.storage_gib, c_last_id);
  END LOOP;

  -- Then those whose hold is past its deadline and that nobody has swept.
  IF v_outcome NOT IN ('won', 'key') AND NOT v_cut_off THEN
    v_now := clock_timestamp();
    -- Planned anew each time: how many holds are overdue decides which way is short, and this runs
    -- only when the shelf is empty.
    FOR v_candidate IN EXECUTE $query$
      SELECT m.id FROM reservation h JOIN machine m ON m.id = h.machine_id JOIN site s ON s.id = m.site_id
      WHERE h.state = 'held' AND h.expires_at <= $1
        AND machine_misfits(s.code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, m.installed, $2) = '{}'
      ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id <= $3, m.id
      LIMIT $4
    $query$ USING v_now, r, v_start, c_candidates + 1
    LOOP
      IF v_seen = c_candidates OR v_lost = c_attempts THEN
        v_cut_off := true;
        EXIT;
      END IF;
      v_seen := v_seen + 1;
      SELECT t.outcome, t.reservation INTO v_outcome, v_reservation FROM machine_try_hold(v_candidate.id, p_organization, p_order_reference, p_key,
        p_requirements, r, p_hold_seconds, v_skipped, v_lost, true) t;
      EXIT WHEN v_outcome IN ('won', 'key');
      v_skipped := v_skipped + (v_outcome = 'skipped')::integer;
      v_lost := v_lost + (v_outcome = 'lost')::integer;
    END LOOP;
  END IF;

  IF v_outcome = 'won' THEN
    RETURN QUERY SELECT 'reserved', v_reservation, NULL::uuid, v_skipped, v_lost, false, NULL::integer, NULL::timestamptz;
  ELSIF v_outcome = 'key' THEN
    RETURN QUERY SELECT 'key_found', NULL::jsonb,
      (SELECT k.id FROM reservation k WHERE k.organization_id = p_organization AND k.idempotency_key = p_key),
      v_skipped, v_lost, false, NULL::integer, NULL::timestamptz;
  ELSE
    RETURN QUERY SELECT 'nothing_won', NULL::jsonb, NULL::uuid, v_skipped, v_lost, v_cut_off, NULL::integer, NULL::timestamptz;
  END IF;
END $$;

DROP FUNCTION machine_misfits(text, text, text, integer, integer, integer, text[], text, machine_requirements);

-- Importing machines: creates or updates by asset tag, all rows or none, in one call.
--
-- Locks: imports against each other (an advisory lock of this transaction), then the existing machines
-- of the file, by id, then their overdue reservations. Orders pass over those machines meanwhile.
-- Twice at once: the second import waits, then finds every row as the first one left it. A machine
-- that somebody creates by hand in between makes this end with a serialization failure, which the
-- caller repeats. An order or a conversion that has one of the machines is waited for, and the machine
-- is judged as it left it.
-- A held or bound machine keeps what it was sold as: such rows are conflicts, and with one of them
-- nothing is written. An existing machine keeps its status: a file written last week must not put a
-- machine that is in CLEANING back on the shelf.
-- Not checked here: the form of the values, and tags that stand twice in the file (the caller does).
--
-- p_rows: [{line, asset_tag, site, location, manufacturer, model, cpu_cores, memory_gib, storage_gib,
--           labels, status, status_given, monthly_price_cents, height_units, depth, power_watts}]
-- A machine that stands in a rack keeps its site, height and depth: its place was made for them, and only
-- machine_edit_geometry can ask whether there is room for more.
-- status is what a new machine gets; status_given: the file says so, and it is no default.
-- p_columns: the file's columns; what an absent one would set is left as it is.
-- Returns {conflicts: [{line, column, reason}], conflict_count}, with the first 1,000 of them by line, or
-- {conflicts: [], conflict_count: 0, created, updated, unchanged, status_kept, sites: [code]}.
CREATE OR REPLACE FUNCTION machine_import(p_rows jsonb, p_columns text[], p_dry_run boolean) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET lock_timeout = '30s' AS $$
DECLARE
  v_result jsonb;
  v_conflicts jsonb;
  v_conflict_count integer;
  v_sites jsonb;
  v_locked integer;
  v_created integer;
  v_updated integer;
  v_kept integer;
BEGIN
  PERFORM pg_advisory_xact_lock(4865110206);
  -- The block is a savepoint: a dry run does all of it and rolls back to here, keeping its answer.
  BEGIN
    PERFORM FROM machine m
    WHERE m.asset_tag IN (SELECT i.asset_tag FROM jsonb_to_recordset(p_rows) AS i (asset_tag text))
    ORDER BY m.id FOR UPDATE;
    GET DIAGNOSTICS v_locked = ROW_COUNT;
    UPDATE reservation r SET state = 'expired', settled_at = r.expires_at
    FROM machine m
    WHERE r.machine_id = m.id AND r.state = 'held' AND r.expires_at <= clock_timestamp()
      AND m.asset_tag IN (SELECT i.asset_tag FROM jsonb_to_recordset(p_rows) AS i (asset_tag text));

    SELECT coalesce(jsonb_agg(jsonb_build_object('line', c.line, 'column', c.name, 'reason',
             format('machine %s is %s and keeps its %s (%s, not %s)', c.asset_tag, c.why, c.name, c.actual, c.wanted))
             ORDER BY c.line, c.place), '[]'),
           coalesce(max(c.total), 0)
    INTO v_conflicts, v_conflict_count
    FROM (
      SELECT i.line, m.asset_tag, d.why, d.place, d.name, d.actual, d.wanted, count(*) OVER () AS total
      FROM jsonb_to_recordset(p_rows) AS i (line integer, asset_tag text, site text, manufacturer text, model text,
                                            cpu_cores integer, memory_gib integer, storage_gib integer, height_units integer, depth text)
      JOIN machine m ON m.asset_tag = i.asset_tag AND (m.occupancy <> 'free' OR m.installed)
      JOIN site s ON s.id = m.site_id
      CROSS JOIN LATERAL (
        SELECT m.occupancy AS why, v.* FROM (VALUES
          (1, 'site', s.code, i.site), (2, 'manufacturer', m.manufacturer, i.manufacturer), (3, 'model', m.model, i.model),
          (4, 'cpu_cores', m.cpu_cores::text, i.cpu_cores::text), (5, 'memory_gib', m.memory_gib::text, i.memory_gib::text),
          (6, 'storage_gib', m.storage_gib::text, i.storage_gib::text)) AS v (place, name, actual, wanted)
        WHERE m.occupancy <> 'free'
        UNION ALL
        SELECT 'installed in a rack', v.* FROM (VALUES
          (1, 'site', s.code, CASE WHEN m.occupancy = 'free' THEN i.site END),
          (7, 'height_units', m.height_units::text, CASE WHEN 'height_units' = ANY (p_columns) THEN i.height_units::text END),
          (8, 'depth', m.depth, CASE WHEN 'depth' = ANY (p_columns) THEN i.depth END)) AS v (place, name, actual, wanted)
        WHERE m.installed) AS d
      WHERE d.actual <> d.wanted
      ORDER BY i.line, d.place LIMIT 1000
    ) c;
    IF v_conflict_count > 0 THEN
      v_result := jsonb_build_object('conflicts', v_conflicts, 'conflict_count', v_conflict_count);
      RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'nothing is written';
    END IF;

    WITH made AS (
      INSERT INTO site (code, name)
      SELECT DISTINCT i.site, i.site FROM jsonb_to_recordset(p_rows) AS i (site text)
      ON CONFLICT (code) DO NOTHING RETURNING code
    ) SELECT coalesce(jsonb_agg(code ORDER BY code), '[]') INTO v_sites FROM made;

    -- Before the update, so that it meets no machine which is neither locked nor new.
    INSERT INTO machine (asset_tag, site_id, location, manufacturer, model, cpu_cores, memory_gib, storage_gib,
                         labels, monthly_price_cents, status, height_units, depth, power_watts)
    SELECT i.asset_tag, s.id, i.location, i.manufacturer, i.model, i.cpu_cores, i.memory_gib, i.storage_gib,
           i.labels, i.monthly_price_cents, i.status, coalesce(i.height_units, 1), coalesce(i.depth, 'full'), i.power_watts
    FROM jsonb_to_recordset(p_rows) AS i (asset_tag text, site text, location text, manufacturer text, model text,
           cpu_cores integer, memory_gib integer, storage_gib integer, labels text[], monthly_price_cents integer, status text,
           height_units integer, depth text, power_watts integer)
    JOIN site s ON s.code = i.site
    ON CONFLICT (asset_tag) DO NOTHING;
    GET DIAGNOSTICS v_created = ROW_COUNT;
    IF v_created + v_locked <> jsonb_array_length(p_rows) THEN
      RAISE EXCEPTION 'a machine of this file was created by somebody else meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;

    SELECT count(*) INTO v_kept
    FROM jsonb_to_recordset(p_rows) AS i (asset_tag text, status text, status_given boolean) JOIN machine m USING (asset_tag)
    WHERE i.status_given AND m.status <> i.status;

    UPDATE machine m SET
      site_id = s.id, manufacturer = i.manufacturer, model = i.model, cpu_cores = i.cpu_cores,
      memory_gib = i.memory_gib, storage_gib = i.storage_gib,
      location = CASE WHEN 'location' = ANY (p_columns) THEN i.location ELSE m.location END,
      labels = CASE WHEN 'labels' = ANY (p_columns) THEN i.labels ELSE m.labels END,
      monthly_price_cents = CASE WHEN 'monthly_price_eur' = ANY (p_columns) THEN i.monthly_price_cents ELSE m.monthly_price_cents END,
      height_units = CASE WHEN 'height_units' = ANY (p_columns) THEN coalesce(i.height_units, m.height_units) ELSE m.height_units END,
      depth = CASE WHEN 'depth' = ANY (p_columns) THEN coalesce(i.depth, m.depth) ELSE m.depth END,
      power_watts = CASE WHEN 'power_watts' = ANY (p_columns) THEN i.power_watts ELSE m.power_watts END
    FROM jsonb_to_recordset(p_rows) AS i (asset_tag text, site text, location text, manufacturer text, model text,
           cpu_cores integer, memory_gib integer, storage_gib integer, labels text[], monthly_price_cents integer,
           height_units integer, depth text, power_watts integer)
    JOIN site s ON s.code = i.site
    WHERE m.asset_tag = i.asset_tag
      AND (ROW (m.site_id, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib)
             IS DISTINCT FROM ROW (s.id, i.manufacturer, i.model, i.cpu_cores, i.memory_gib, i.storage_gib)
           OR ('location' = ANY (p_columns) AND m.location IS DISTINCT FROM i.location)
           OR ('labels' = ANY (p_columns) AND m.labels IS DISTINCT FROM i.labels)
           OR ('monthly_price_eur' = ANY (p_columns) AND m.monthly_price_cents IS DISTINCT FROM i.monthly_price_cents)
           OR ('height_units' = ANY (p_columns) AND m.height_units <> i.height_units)
           OR ('depth' = ANY (p_columns) AND m.depth <> i.depth)
           OR ('power_watts' = ANY (p_columns) AND m.power_watts IS DISTINCT FROM i.power_watts));
    GET DIAGNOSTICS v_updated = ROW_COUNT;

    v_result := jsonb_build_object('conflicts', '[]'::jsonb, 'conflict_count', 0, 'created', v_created, 'updated', v_updated,
      'unchanged', jsonb_array_length(p_rows) - v_created - v_updated, 'status_kept', v_kept, 'sites', v_sites);
    IF p_dry_run THEN
      RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'nothing is written';
    END IF;
  EXCEPTION WHEN SQLSTATE 'HF001' THEN
    NULL;
  END;
  RETURN v_result;
END $$;
