-- The arbiters of reservations: who wins is decided here, whatever SQL is sent.
-- Lock order everywhere: machine, then reservation, then binding (where an organization's holds are
-- counted or prolonged, its row before all of them). Triggers of a row that somebody
-- changes by hand take the machine's lock second; PostgreSQL ends such a deadlock, and the
-- application repeats its own side.

-- Invariant: a machine has at most one hold. The states that hold a machine are those for which
-- `holdsMachine` is true in src/reservations/states.ts; a test compares the two.
CREATE UNIQUE INDEX reservation_one_hold_per_machine ON reservation (machine_id) WHERE state = 'held';

-- Invariant: an organization's key names one reservation for ever.
CREATE UNIQUE INDEX reservation_idempotency_key ON reservation (organization_id, idempotency_key);

-- Invariant: a machine serves at most one customer.
CREATE UNIQUE INDEX service_binding_one_active_per_machine ON service_binding (machine_id)
  WHERE released_at IS NULL;

-- Invariant: a reservation becomes at most one binding.
CREATE UNIQUE INDEX service_binding_one_per_reservation ON service_binding (reservation_id);

-- Invariant: no machine is held and bound at once. The promise spans two tables, so no index can
-- keep it: both sides lock the machine row, and look at the other table in a statement that starts
-- after they hold that lock (a snapshot taken before waiting would predate the other's commit).
-- A transaction with a frozen snapshot (REPEATABLE READ) cannot look again; it is refused by
-- PostgreSQL itself, because every hold and every binding changes the machine row it locks.
-- Invariant: an overdue hold is neither converted nor prolonged, and no deadline moves forward in time.
CREATE FUNCTION reservation_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_status text;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF ROW (NEW.id, NEW.machine_id, NEW.organization_id, NEW.order_reference, NEW.idempotency_key,
            NEW.requirements, NEW.held_at, NEW.hold_seconds, NEW.choice)
       IS DISTINCT FROM
       ROW (OLD.id, OLD.machine_id, OLD.organization_id, OLD.order_reference, OLD.idempotency_key,
            OLD.requirements, OLD.held_at, OLD.hold_seconds, OLD.choice) THEN
      RAISE EXCEPTION 'a reservation keeps its machine, its owner, its key and its frozen choice'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_identity_is_frozen', TABLE = 'reservation';
    END IF;
    IF OLD.state <> 'held' THEN
      RAISE EXCEPTION 'reservation % is % and stays so', OLD.id, OLD.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_state_transition', TABLE = 'reservation';
    END IF;
    IF (NEW.state = 'converted' OR NEW.expires_at <> OLD.expires_at) AND OLD.expires_at <= clock_timestamp()
       OR NEW.expires_at < OLD.expires_at THEN
      RAISE EXCEPTION 'the hold % ends at %', OLD.id, OLD.expires_at
        USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_deadline_is_kept', TABLE = 'reservation';
    END IF;
    RETURN NEW;
  END IF;

  IF NEW.state <> 'held' THEN
    RAISE EXCEPTION 'a reservation begins as a hold'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_state_transition', TABLE = 'reservation';
  END IF;
  SELECT status INTO v_status FROM machine WHERE id = NEW.machine_id FOR UPDATE;
  IF v_status <> 'ready' THEN
    RAISE EXCEPTION 'machine % is %, not ready', NEW.machine_id, v_status
      USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_machine_is_ready', TABLE = 'reservation';
  END IF;
  IF EXISTS (SELECT FROM service_binding WHERE machine_id = NEW.machine_id AND released_at IS NULL) THEN
    RAISE EXCEPTION 'machine % is bound', NEW.machine_id
      USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'machine_never_held_and_bound', TABLE = 'reservation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER reservation_guard BEFORE INSERT OR UPDATE ON reservation
  FOR EACH ROW EXECUTE FUNCTION reservation_guard();

-- Invariant: what was sold stays on record. A key names its reservation for ever, and a machine leaves
-- its customer by a release, which sends it to CLEANING, and by nothing else.
CREATE FUNCTION row_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a % is never deleted', TG_TABLE_NAME
    USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_is_kept', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER reservation_is_kept BEFORE DELETE ON reservation
  FOR EACH ROW EXECUTE FUNCTION row_is_kept();
CREATE TRIGGER service_binding_is_kept BEFORE DELETE ON service_binding
  FOR EACH ROW EXECUTE FUNCTION row_is_kept();

CREATE FUNCTION service_binding_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF ROW (NEW.id, NEW.reservation_id, NEW.machine_id, NEW.organization_id, NEW.service_reference, NEW.bound_at)
       IS DISTINCT FROM
       ROW (OLD.id, OLD.reservation_id, OLD.machine_id, OLD.organization_id, OLD.service_reference, OLD.bound_at)
       OR OLD.released_at IS NOT NULL THEN
      RAISE EXCEPTION 'a binding changes once, when it is released'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'service_binding_changes_once', TABLE = 'service_binding';
    END IF;
    RETURN NEW;
  END IF;

  PERFORM FROM machine WHERE id = NEW.machine_id FOR UPDATE;
  IF EXISTS (SELECT FROM reservation WHERE machine_id = NEW.machine_id AND state = 'held') THEN
    RAISE EXCEPTION 'machine % is held', NEW.machine_id
      USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'machine_never_held_and_bound', TABLE = 'service_binding';
  END IF;
  IF NOT EXISTS (SELECT FROM reservation WHERE id = NEW.reservation_id AND state = 'converted') THEN
    RAISE EXCEPTION 'a binding comes from a converted reservation'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'service_binding_of_converted_reservation', TABLE = 'service_binding';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER service_binding_guard BEFORE INSERT OR UPDATE ON service_binding
  FOR EACH ROW EXECUTE FUNCTION service_binding_guard();

-- Invariant: a converted reservation has its binding when the transaction ends.
CREATE FUNCTION reservation_converted_has_binding() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM service_binding WHERE reservation_id = NEW.id) THEN
    RAISE EXCEPTION 'reservation % was converted without a binding', NEW.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_converted_has_binding', TABLE = 'reservation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER reservation_converted_has_binding AFTER UPDATE OF state ON reservation
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state = 'converted')
  EXECUTE FUNCTION reservation_converted_has_binding();

-- Invariant: machine.occupancy is what the reservation and binding rows say. It is computed anew
-- from those rows, never moved by a step. A conversion leaves it at 'held' until the binding of the
-- same transaction turns it into 'bound', so that no statement shows the machine free in between.
-- A released machine goes to CLEANING in the very update that ends its occupancy.
CREATE FUNCTION machine_occupancy_refresh() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_released boolean := TG_TABLE_NAME = 'service_binding' AND TG_OP = 'UPDATE';
BEGIN
  UPDATE machine SET
    occupancy = CASE
      WHEN EXISTS (SELECT FROM service_binding WHERE machine_id = NEW.machine_id AND released_at IS NULL) THEN 'bound'
      WHEN EXISTS (SELECT FROM reservation WHERE machine_id = NEW.machine_id AND state = 'held') THEN 'held'
      ELSE 'free' END,
    status = CASE WHEN v_released THEN 'cleaning' ELSE status END
  WHERE id = NEW.machine_id;
  RETURN NULL;
END $$;
CREATE TRIGGER reservation_begins_occupancy AFTER INSERT ON reservation
  FOR EACH ROW EXECUTE FUNCTION machine_occupancy_refresh();
CREATE TRIGGER reservation_ends_occupancy AFTER UPDATE OF state ON reservation
  FOR EACH ROW WHEN (NEW.state IN ('expired', 'cancelled')) EXECUTE FUNCTION machine_occupancy_refresh();
CREATE TRIGGER service_binding_begins_occupancy AFTER INSERT ON service_binding
  FOR EACH ROW EXECUTE FUNCTION machine_occupancy_refresh();
CREATE TRIGGER service_binding_ends_occupancy AFTER UPDATE OF released_at ON service_binding
  FOR EACH ROW WHEN (OLD.released_at IS NULL AND NEW.released_at IS NOT NULL)
  EXECUTE FUNCTION machine_occupancy_refresh();

-- Invariant: a held or bound machine stays what it was sold as, and stays in service. Its labels,
-- place and price may be corrected.
-- Invariant: nobody but the triggers above writes occupancy (they run one level deeper).
CREATE FUNCTION machine_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.occupancy <> 'free' THEN
      RAISE EXCEPTION 'occupancy is derived from reservations and bindings'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'machine_occupancy_is_derived', TABLE = 'machine';
    END IF;
    RETURN NEW;
  END IF;
  IF pg_trigger_depth() > 1 THEN
    RETURN NEW;
  END IF;
  IF NEW.occupancy <> OLD.occupancy THEN
    RAISE EXCEPTION 'occupancy is derived from reservations and bindings'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'machine_occupancy_is_derived', TABLE = 'machine';
  END IF;
  IF OLD.occupancy <> 'free'
     AND ROW (NEW.id, NEW.asset_tag, NEW.site_id, NEW.manufacturer, NEW.model, NEW.cpu_cores,
              NEW.memory_gib, NEW.storage_gib, NEW.status)
         IS DISTINCT FROM
         ROW (OLD.id, OLD.asset_tag, OLD.site_id, OLD.manufacturer, OLD.model, OLD.cpu_cores,
              OLD.memory_gib, OLD.storage_gib, OLD.status) THEN
    RAISE EXCEPTION 'machine % is %', OLD.asset_tag, OLD.occupancy
      USING ERRCODE = 'check_violation', CONSTRAINT = 'machine_in_use', TABLE = 'machine';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machine_guard BEFORE INSERT OR UPDATE ON machine
  FOR EACH ROW EXECUTE FUNCTION machine_guard();
