-- What the rows mean at this moment. Deadlines are judged by the database's clock as the rows are
-- read, so that every answer is right with no sweeper running at all.

-- A hold past its deadline reads as expired at that deadline, whether or not its row was touched.
CREATE VIEW reservation_now AS
SELECT r.id, r.organization_id, r.machine_id, r.order_reference, r.idempotency_key, r.requirements,
       CASE WHEN r.state = 'held' AND r.expires_at <= statement_timestamp() THEN 'expired' ELSE r.state END AS state,
       r.held_at, r.hold_seconds, r.expires_at,
       CASE WHEN r.state = 'held' AND r.expires_at <= statement_timestamp() THEN r.expires_at ELSE r.settled_at END AS settled_at,
       r.cancellation_reason, r.choice
FROM reservation r;

-- A machine with its availability and with the hold or binding that stands on it now.
CREATE VIEW machine_now AS
SELECT m.id, m.asset_tag, m.site_id, s.code AS site_code, m.location, m.manufacturer, m.model,
       m.cpu_cores, m.memory_gib, m.storage_gib, m.labels, m.monthly_price_cents, m.status,
       CASE WHEN b.id IS NOT NULL THEN 'bound'
            WHEN r.id IS NOT NULL THEN 'held'
            WHEN m.status <> 'ready' THEN 'not_ready'
            ELSE 'free' END AS availability,
       r.id AS reservation_id, r.expires_at AS held_until, b.id AS binding_id,
       -- Free, but for a hold past its deadline that nobody has swept: sold after the truly free ones.
       m.occupancy = 'held' AND r.id IS NULL AS overdue
FROM machine m
JOIN site s ON s.id = m.site_id
LEFT JOIN reservation r ON r.machine_id = m.id AND r.state = 'held' AND r.expires_at > statement_timestamp()
LEFT JOIN service_binding b ON b.machine_id = m.id AND b.released_at IS NULL;

-- An order's requirements; null does not restrict.
CREATE TYPE machine_requirements AS (
  site_code text,
  manufacturer text,
  model text,
  min_cpu_cores integer,
  min_memory_gib integer,
  min_storage_gib integer,
  labels text[]
);

-- The predicate: every reason why hardware never fits an order, empty when it does. The allocator,
-- the preview and a refusal's counts all call this one function; being one expression, the planner
-- puts it in place. Whether a fitting machine is taken is not asked here (see machine_rejections).
CREATE FUNCTION machine_misfits(
  site_code text, manufacturer text, model text, cpu_cores integer, memory_gib integer,
  storage_gib integer, labels text[], status text, r machine_requirements
) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT array_remove(ARRAY[
    CASE WHEN site_code <> (r).site_code THEN 'wrong_site' END,
    CASE WHEN manufacturer <> (r).manufacturer THEN 'wrong_manufacturer' END,
    CASE WHEN model <> (r).model THEN 'wrong_model' END,
    CASE WHEN cpu_cores < (r).min_cpu_cores THEN 'too_few_cores' END,
    CASE WHEN memory_gib < (r).min_memory_gib THEN 'too_little_memory' END,
    CASE WHEN storage_gib < (r).min_storage_gib THEN 'too_little_storage' END,
    CASE WHEN NOT labels @> coalesce((r).labels, '{}') THEN 'missing_label' END,
    CASE WHEN status <> 'ready' THEN 'not_ready' END
  ], NULL)
$$;

-- Every reason that excludes a machine now: what never fits, and who has it.
CREATE FUNCTION machine_rejections(m machine_now, r machine_requirements) RETURNS text[]
LANGUAGE sql STABLE AS $$
  SELECT machine_misfits((m).site_code, (m).manufacturer, (m).model, (m).cpu_cores, (m).memory_gib,
                         (m).storage_gib, (m).labels, (m).status, r)
      || CASE WHEN (m).availability IN ('held', 'bound') THEN ARRAY[(m).availability] ELSE '{}' END
$$;

-- Is a module open for this organization? Its own override first, else the rollout switch. With no
-- organization, the switch alone.
CREATE FUNCTION module_enabled(p_organization uuid, p_module text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT coalesce(
    (SELECT enabled FROM feature_override WHERE organization_id = p_organization AND module = p_module),
    (SELECT enabled FROM rollout_switch WHERE module = p_module))
$$;
