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
--           labels, status, status_given, monthly_price_cents}]
-- status is what a new machine gets; status_given: the file says so, and it is no default.
-- p_columns: the file's columns; what an absent one would set is left as it is.
-- Returns {conflicts: [{line, column, reason}], conflict_count}, with the first 1,000 of them by line, or
-- {conflicts: [], conflict_count: 0, created, updated, unchanged, status_kept, sites: [code]}.
CREATE FUNCTION machine_import(p_rows jsonb, p_columns text[], p_dry_run boolean) RETURNS jsonb
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
             format('machine %s is %s and keeps its %s (%s, not %s)', c.asset_tag, c.occupancy, c.name, c.actual, c.wanted))
             ORDER BY c.line, c.place), '[]'),
           coalesce(max(c.total), 0)
    INTO v_conflicts, v_conflict_count
    FROM (
      SELECT i.line, m.asset_tag, m.occupancy, d.place, d.name, d.actual, d.wanted, count(*) OVER () AS total
      FROM jsonb_to_recordset(p_rows) AS i (line integer, asset_tag text, site text, manufacturer text, model text,
                                            cpu_cores integer, memory_gib integer, storage_gib integer)
      JOIN machine m ON m.asset_tag = i.asset_tag AND m.occupancy <> 'free'
      JOIN site s ON s.id = m.site_id
      CROSS JOIN LATERAL (VALUES
        (1, 'site', s.code, i.site), (2, 'manufacturer', m.manufacturer, i.manufacturer), (3, 'model', m.model, i.model),
        (4, 'cpu_cores', m.cpu_cores::text, i.cpu_cores::text), (5, 'memory_gib', m.memory_gib::text, i.memory_gib::text),
        (6, 'storage_gib', m.storage_gib::text, i.storage_gib::text)) AS d (place, name, actual, wanted)
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
                         labels, monthly_price_cents, status)
    SELECT i.asset_tag, s.id, i.location, i.manufacturer, i.model, i.cpu_cores, i.memory_gib, i.storage_gib,
           i.labels, i.monthly_price_cents, i.status
    FROM jsonb_to_recordset(p_rows) AS i (asset_tag text, site text, location text, manufacturer text, model text,
           cpu_cores integer, memory_gib integer, storage_gib integer, labels text[], monthly_price_cents integer, status text)
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
      monthly_price_cents = CASE WHEN 'monthly_price_eur' = ANY (p_columns) THEN i.monthly_price_cents ELSE m.monthly_price_cents END
    FROM jsonb_to_recordset(p_rows) AS i (asset_tag text, site text, location text, manufacturer text, model text,
           cpu_cores integer, memory_gib integer, storage_gib integer, labels text[], monthly_price_cents integer)
    JOIN site s ON s.code = i.site
    WHERE m.asset_tag = i.asset_tag
      AND (ROW (m.site_id, m.manufacturer, m.model, m.cpu_cores, m.memory_gib, m.storage_gib)
             IS DISTINCT FROM ROW (s.id, i.manufacturer, i.model, i.cpu_cores, i.memory_gib, i.storage_gib)
           OR ('location' = ANY (p_columns) AND m.location IS DISTINCT FROM i.location)
           OR ('labels' = ANY (p_columns) AND m.labels IS DISTINCT FROM i.labels)
           OR ('monthly_price_eur' = ANY (p_columns) AND m.monthly_price_cents IS DISTINCT FROM i.monthly_price_cents));
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
