-- Reserving a machine, in one call and therefore one transaction and one round trip.
--
-- Locks, in this order: the organization row (its orders are counted one after the other), then one
-- machine row at a time with SKIP LOCKED, inside a savepoint that a lost candidate is rolled back to,
-- then the reservation that is inserted. It never waits for a machine, so it cannot be part of a
-- deadlock over machines.
-- Twice at once with one key: the second waits for the organization, finds the key and answers from
-- it. Should a writer bypass that lock, reservation_idempotency_key decides and the loser's machine
-- is let go. Twice with two keys on one machine: the lock, then reservation_one_hold_per_machine.
-- Every statement below has a snapshot of its own (VOLATILE, READ COMMITTED); deadlines are judged
-- with clock_timestamp() after the lock is held.
-- Not checked here: whether the caller may act for the organization, and why nothing could be won
-- (the caller reads the full list afterwards, outside this transaction).

-- The next machine on the shelf that fits, after a given place in the order of best fit. The
-- conditions on single columns only narrow the index range; machine_misfits is what decides. (The site
-- is decided by the range itself, and judged again under the lock.)
CREATE FUNCTION machine_next_on_shelf(
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
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, r) = '{}'
    ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1;
  ELSIF r.model IS NOT NULL THEN
    RETURN QUERY
    SELECT m.id, m.cpu_cores, m.memory_gib, m.storage_gib FROM machine m
    WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.model = r.model
      AND (m.cpu_cores, m.memory_gib, m.storage_gib, m.id) > (p_after_cores, p_after_memory, p_after_storage, p_after_id)
      AND m.memory_gib >= coalesce(r.min_memory_gib, 0) AND m.storage_gib >= coalesce(r.min_storage_gib, 0)
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, r) = '{}'
    ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1;
  ELSE
    RETURN QUERY
    SELECT m.id, m.cpu_cores, m.memory_gib, m.storage_gib FROM machine m
    WHERE m.status = 'ready' AND m.occupancy = 'free'
      AND (m.cpu_cores, m.memory_gib, m.storage_gib, m.id) > (p_after_cores, p_after_memory, p_after_storage, p_after_id)
      AND m.memory_gib >= coalesce(r.min_memory_gib, 0) AND m.storage_gib >= coalesce(r.min_storage_gib, 0)
      AND machine_misfits(r.site_code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, r) = '{}'
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
CREATE FUNCTION machine_try_hold(
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
                     v_machine.memory_gib, v_machine.storage_gib, v_machine.labels, v_machine.status, r) <> '{}' THEN
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
CREATE FUNCTION reserve_machine(
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
        AND machine_misfits(s.code, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.status, $2) = '{}'
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
