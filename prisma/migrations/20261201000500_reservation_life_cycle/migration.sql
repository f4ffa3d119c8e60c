-- What can happen to a hold, a binding and a machine's status: one function a transition, one call
-- a transaction. Each locks the machine, then the reservation, then the binding (an extension first of
-- all the organization, whose holds it keeps alive); judges the row it
-- has locked, with clock_timestamp() after the lock; and changes it only in the expected state, so
-- that a late call never touches a successor's. p_organization limits what the caller may see (null
-- = everything): what he may not see answers exactly like what does not exist.
-- Twice at once: one wins and the other is told the end state that it finds.

-- 'converted' | 'not_found' | 'module_disabled' | 'already_converted' | 'expired' | 'cancelled'.
-- p_follow_switch: false for an operator, who may honour a paid order while the module is closed.
-- The hold is promoted: at every instant another session sees the hold or the binding.
CREATE FUNCTION reservation_convert(
  p_reservation uuid, p_organization uuid, p_service_reference text, p_follow_switch boolean
) RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v reservation;
  v_now timestamptz;
  v_constraint text;
BEGIN
  SELECT * INTO v FROM reservation
  WHERE id = p_reservation AND (p_organization IS NULL OR organization_id = p_organization);
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  PERFORM FROM machine WHERE id = v.machine_id FOR UPDATE;
  SELECT * INTO v FROM reservation WHERE id = p_reservation FOR UPDATE;
  v_now := clock_timestamp();
  IF v.state = 'converted' THEN RETURN 'already_converted'; END IF;
  IF v.state <> 'held' THEN RETURN v.state; END IF;
  IF v.expires_at <= v_now THEN RETURN 'expired'; END IF;
  IF p_follow_switch AND NOT module_enabled(v.organization_id, 'datacenter') THEN RETURN 'module_disabled'; END IF;
  BEGIN
    UPDATE reservation SET state = 'converted', settled_at = v_now WHERE id = p_reservation;
  EXCEPTION WHEN check_violation THEN
    -- The arbiter judged a moment later than the line above.
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    IF v_constraint = 'reservation_deadline_is_kept' THEN RETURN 'expired'; END IF;
    RAISE;
  END;
  INSERT INTO service_binding (reservation_id, organization_id, machine_id, service_reference, bound_at)
  VALUES (p_reservation, v.organization_id, v.machine_id, p_service_reference, v_now);
  RETURN 'converted';
END $$;

-- 'extended' | 'not_found' | 'module_disabled' | 'limit' | 'converted' | 'expired' | 'cancelled'.
-- Adds the hold time once more, never beyond twice the hold time in all. Repeating it is refused
-- with 'limit' as soon as nothing more can be added. Locks the organization first, as reserving does:
-- an order that is counting holds must not miss one whose deadline is just being moved.
CREATE FUNCTION reservation_extend(p_reservation uuid, p_organization uuid, p_follow_switch boolean)
RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v reservation;
  v_latest timestamptz;
  v_constraint text;
BEGIN
  SELECT * INTO v FROM reservation
  WHERE id = p_reservation AND (p_organization IS NULL OR organization_id = p_organization);
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  PERFORM FROM organization WHERE id = v.organization_id FOR NO KEY UPDATE;
  PERFORM FROM machine WHERE id = v.machine_id FOR UPDATE;
  SELECT * INTO v FROM reservation WHERE id = p_reservation FOR UPDATE;
  IF v.state <> 'held' THEN RETURN v.state; END IF;
  IF v.expires_at <= clock_timestamp() THEN RETURN 'expired'; END IF;
  IF p_follow_switch AND NOT module_enabled(v.organization_id, 'datacenter') THEN RETURN 'module_disabled'; END IF;
  v_latest := v.held_at + 2 * make_interval(secs => v.hold_seconds);
  IF v.expires_at >= v_latest THEN RETURN 'limit'; END IF;
  BEGIN
    UPDATE reservation
    SET expires_at = least(v.expires_at + make_interval(secs => v.hold_seconds), v_latest)
    WHERE id = p_reservation;
  EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    IF v_constraint = 'reservation_deadline_is_kept' THEN RETURN 'expired'; END IF;
    RAISE;
  END;
  RETURN 'extended';
END $$;

-- 'released' | 'not_found' | 'converted' | 'expired' | 'cancelled'. Works with the switch closed.
CREATE FUNCTION reservation_cancel(p_reservation uuid, p_organization uuid, p_reason text)
RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v reservation;
BEGIN
  SELECT * INTO v FROM reservation
  WHERE id = p_reservation AND (p_organization IS NULL OR organization_id = p_organization);
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  PERFORM FROM machine WHERE id = v.machine_id FOR UPDATE;
  SELECT * INTO v FROM reservation WHERE id = p_reservation FOR UPDATE;
  IF v.state <> 'held' THEN RETURN v.state; END IF;
  IF v.expires_at <= clock_timestamp() THEN RETURN 'expired'; END IF;
  UPDATE reservation SET state = 'cancelled', settled_at = clock_timestamp(), cancellation_reason = p_reason
  WHERE id = p_reservation;
  RETURN 'released';
END $$;

-- 'expired' | 'busy' | 'not_due'. One overdue hold, for the sweeper: a machine or a hold that somebody
-- has locked is passed over (its holder expires the hold himself or changes it), so that no row keeps
-- the sweeper waiting, and the deadline is judged again under the lock. A hold reads as settled at its deadline, not when it was swept.
CREATE FUNCTION reservation_expire(p_reservation uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_machine uuid;
BEGIN
  SELECT machine_id INTO v_machine FROM reservation WHERE id = p_reservation;
  IF NOT FOUND THEN RETURN 'not_due'; END IF;
  PERFORM FROM machine WHERE id = v_machine FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 'busy'; END IF;
  PERFORM FROM reservation WHERE id = p_reservation FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 'busy'; END IF;
  UPDATE reservation SET state = 'expired', settled_at = expires_at
  WHERE id = p_reservation AND state = 'held' AND expires_at <= clock_timestamp();
  IF NOT FOUND THEN RETURN 'not_due'; END IF;
  RETURN 'expired';
END $$;

-- 'released' | 'already_released' | 'not_found'. The trigger on service_binding sends the machine
-- to CLEANING in the same transaction.
CREATE FUNCTION binding_release(p_binding uuid, p_organization uuid)
RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v service_binding;
BEGIN
  SELECT * INTO v FROM service_binding
  WHERE id = p_binding AND (p_organization IS NULL OR organization_id = p_organization);
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  PERFORM FROM machine WHERE id = v.machine_id FOR UPDATE;
  UPDATE service_binding SET released_at = clock_timestamp() WHERE id = p_binding AND released_at IS NULL;
  IF NOT FOUND THEN RETURN 'already_released'; END IF;
  RETURN 'released';
END $$;

-- 'set' | 'in_use' | 'not_found'. An overdue hold in the way is expired first; a live hold or a
-- binding refuses every change of status (machine_in_use says so to everybody else). Setting the
-- status that the machine already has changes nothing.
CREATE FUNCTION machine_set_status(p_machine uuid, p_status text)
RETURNS text LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v machine;
BEGIN
  SELECT * INTO v FROM machine WHERE id = p_machine FOR UPDATE;
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  IF v.status = p_status THEN RETURN 'set'; END IF;
  UPDATE reservation SET state = 'expired', settled_at = expires_at
  WHERE machine_id = p_machine AND state = 'held' AND expires_at <= clock_timestamp();
  SELECT * INTO v FROM machine WHERE id = p_machine;
  IF v.occupancy <> 'free' THEN RETURN 'in_use'; END IF;
  UPDATE machine SET status = p_status WHERE id = p_machine;
  RETURN 'set';
END $$;
