-- Projects, their one deployment each, its attempts and its events, and the rules between them.
-- Lock order: deployment, then its attempts, then slugs, then events.

CREATE TABLE project (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  organization_id uuid NOT NULL REFERENCES organization (id),
  name text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT project_name_length CHECK (char_length(name) BETWEEN 1 AND 200)
);
CREATE INDEX project_list ON project (name, id);
CREATE INDEX project_list_by_organization ON project (organization_id, name, id);

-- The right to publish a project. Claiming the row is the lock; `attempt` is the fencing token, which
-- every later write names.
CREATE TABLE deployment (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  project_id uuid NOT NULL REFERENCES project (id),
  -- Of the current attempt; of the live one, if there is one, as soon as the current one has ended otherwise.
  slug text NOT NULL,
  state text NOT NULL,
  attempt integer NOT NULL,
  claimed_at timestamptz,
  heartbeat_at timestamptz,
  -- Of the current attempt only.
  error text,
  -- What is being served, whatever a newer attempt does.
  live_attempt integer,
  live_slug text,
  live_url text,
  -- Number of the last event.
  sequence integer NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT deployment_slug_is_a_label CHECK (slug ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
  CONSTRAINT deployment_state CHECK (state IN ('building', 'live', 'failed', 'cancelled')),
  CONSTRAINT deployment_attempt_range CHECK (attempt >= 1),
  CONSTRAINT deployment_error_only_when_failed CHECK (error IS NULL OR state = 'failed'),
  CONSTRAINT deployment_live_is_whole CHECK ((live_attempt IS NULL) = (live_slug IS NULL)),
  CONSTRAINT deployment_live_attempt_range CHECK (live_attempt BETWEEN 1 AND attempt),
  CONSTRAINT deployment_live_is_the_current_attempt CHECK (state <> 'live' OR (live_attempt = attempt AND live_slug = slug)),
  CONSTRAINT deployment_building_has_a_claim CHECK (state <> 'building' OR (claimed_at IS NOT NULL AND heartbeat_at IS NOT NULL))
);
-- Invariant: a project has one deployment, so that there is one row to claim.
CREATE UNIQUE INDEX deployment_one_per_project ON deployment (project_id);
-- Claims that may be stale, in the order of their last beat.
CREATE INDEX deployment_beating ON deployment (heartbeat_at) WHERE state = 'building';

-- The slugs in use: the one that a deployment builds for, and the one it is served under. Written by the
-- trigger on deployment alone.
CREATE TABLE app_slug (
  slug text NOT NULL,
  deployment_id uuid NOT NULL REFERENCES deployment (id),
  -- Invariant: a slug names one app. A second one waits for the first one's commit and is refused.
  CONSTRAINT app_slug_names_one_app PRIMARY KEY (slug)
);
CREATE INDEX app_slug_deployment_id ON app_slug (deployment_id);

CREATE TABLE publish_attempt (
  -- The orchestrator's idempotency key.
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  deployment_id uuid NOT NULL REFERENCES deployment (id),
  number integer NOT NULL,
  state text NOT NULL DEFAULT 'building',
  slug text NOT NULL,
  source text NOT NULL,
  -- Host and process that claimed it: for people. It is no fence, since one process may claim twice.
  owner text NOT NULL,
  -- The build service that was asked, and since when a build may exist there.
  orchestrator_url text,
  build_asked_at timestamptz,
  -- The build's id there; null with build_asked_at set: whether a build exists is not known.
  build_id text,
  url text,
  error text,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  -- When the orchestrator is to be told (again) to stop the build; null: nothing to tell.
  stop_due_at timestamptz,
  stop_tries integer NOT NULL DEFAULT 0,
  CONSTRAINT publish_attempt_state CHECK (
    state IN ('building', 'live', 'failed', 'cancelled', 'abandoned', 'superseded')),
  CONSTRAINT publish_attempt_finished_when_over CHECK ((state = 'building') = (finished_at IS NULL)),
  CONSTRAINT publish_attempt_source_length CHECK (char_length(source) BETWEEN 1 AND 2000),
  CONSTRAINT publish_attempt_stops_what_was_asked CHECK (stop_due_at IS NULL OR (build_asked_at IS NOT NULL AND state <> 'building')),
  CONSTRAINT publish_attempt_asked_somebody CHECK ((build_asked_at IS NULL) = (orchestrator_url IS NULL))
);
-- Invariant: an attempt number is given out once.
CREATE UNIQUE INDEX publish_attempt_number ON publish_attempt (deployment_id, number);
-- Invariant: one attempt of a deployment builds at a time.
CREATE UNIQUE INDEX publish_attempt_one_building ON publish_attempt (deployment_id) WHERE state = 'building';
-- Invariant: one attempt of a deployment is live at a time.
CREATE UNIQUE INDEX publish_attempt_one_live ON publish_attempt (deployment_id) WHERE state = 'live';
-- Builds to stop, in the order in which they fall due.
CREATE INDEX publish_attempt_stop_due ON publish_attempt (stop_due_at) WHERE stop_due_at IS NOT NULL;

-- What happened to a deployment, in order and without gaps, each with the deployment as it was then.
CREATE TABLE deployment_event (
  deployment_id uuid NOT NULL REFERENCES deployment (id),
  sequence integer NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  message text NOT NULL,
  slug text NOT NULL,
  state text NOT NULL,
  attempt integer NOT NULL,
  claimed_at timestamptz,
  heartbeat_at timestamptz,
  error text,
  live_attempt integer,
  live_slug text,
  live_url text,
  -- Invariant: a change has one number.
  PRIMARY KEY (deployment_id, sequence)
);

-- Invariant: numbers only grow, an attempt ends once, and only a new attempt builds again. A write that
-- forgets the fence (a late finish after a cancellation) is refused here.
CREATE FUNCTION deployment_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.id <> OLD.id OR NEW.project_id <> OLD.project_id OR NEW.attempt NOT IN (OLD.attempt, OLD.attempt + 1)
     OR NEW.sequence NOT IN (OLD.sequence, OLD.sequence + 1)
     OR (OLD.live_attempt IS NOT NULL AND (NEW.live_attempt IS NULL OR NEW.live_attempt < OLD.live_attempt)) THEN
    RAISE EXCEPTION 'a deployment keeps its project, and its numbers grow by one'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'deployment_numbers_grow', TABLE = 'deployment';
  END IF;
  IF (NEW.attempt = OLD.attempt AND OLD.state <> 'building' AND NEW.state <> OLD.state)
     OR (NEW.attempt <> OLD.attempt AND NEW.state <> 'building') THEN
    RAISE EXCEPTION 'an attempt that is over stays so, and a new one begins by building'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'deployment_attempt_ends_once', TABLE = 'deployment';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER deployment_guard BEFORE UPDATE ON deployment FOR EACH ROW EXECUTE FUNCTION deployment_guard();
CREATE TRIGGER deployment_is_kept BEFORE DELETE ON deployment FOR EACH ROW EXECUTE FUNCTION row_is_kept();

-- Keeps app_slug at what the deployment uses. Inserts before it deletes: two deployments that trade names
-- both find the other's still there, and neither waits for the other.
CREATE FUNCTION deployment_slugs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_used text[] := array_remove(ARRAY[NEW.slug, NEW.live_slug], NULL);
BEGIN
  INSERT INTO app_slug (slug, deployment_id)
  SELECT DISTINCT used, NEW.id FROM unnest(v_used) used
  WHERE NOT EXISTS (SELECT FROM app_slug s WHERE s.slug = used AND s.deployment_id = NEW.id);
  DELETE FROM app_slug WHERE deployment_id = NEW.id AND slug <> ALL (v_used);
  RETURN NULL;
END $$;
CREATE TRIGGER deployment_slugs AFTER INSERT OR UPDATE OF slug, live_slug ON deployment
  FOR EACH ROW EXECUTE FUNCTION deployment_slugs();

-- Invariant: app_slug says what the deployments say. Nobody but the trigger above writes it.
CREATE FUNCTION app_slug_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' OR pg_trigger_depth() < 2 THEN
    RAISE EXCEPTION 'slugs follow from the deployments'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'app_slug_is_derived', TABLE = 'app_slug';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER app_slug_guard BEFORE INSERT OR UPDATE OR DELETE ON app_slug FOR EACH ROW EXECUTE FUNCTION app_slug_guard();
CREATE TRIGGER app_slug_is_kept BEFORE TRUNCATE ON app_slug FOR EACH STATEMENT EXECUTE FUNCTION app_slug_guard();

-- Invariant: an attempt keeps what it is, ends once, and what is live can only be superseded.
CREATE FUNCTION publish_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF ROW (NEW.id, NEW.deployment_id, NEW.number, NEW.slug, NEW.source, NEW.owner, NEW.started_at)
     IS DISTINCT FROM ROW (OLD.id, OLD.deployment_id, OLD.number, OLD.slug, OLD.source, OLD.owner, OLD.started_at)
     OR (OLD.finished_at IS NOT NULL AND ROW (NEW.error, NEW.url, NEW.finished_at, NEW.build_asked_at)
         IS DISTINCT FROM ROW (OLD.error, OLD.url, OLD.finished_at, OLD.build_asked_at))
     OR (NEW.state <> OLD.state AND OLD.state <> 'building' AND NOT (OLD.state = 'live' AND NEW.state = 'superseded'))
     OR (NEW.state = 'superseded' AND OLD.state NOT IN ('live', 'superseded')) THEN
    RAISE EXCEPTION 'an attempt keeps what it is and ends once'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'publish_attempt_ends_once', TABLE = 'publish_attempt';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER publish_attempt_guard BEFORE UPDATE ON publish_attempt
  FOR EACH ROW EXECUTE FUNCTION publish_attempt_guard();
CREATE TRIGGER publish_attempt_is_kept BEFORE DELETE ON publish_attempt
  FOR EACH ROW EXECUTE FUNCTION row_is_kept();

-- Invariant: a deployment, its current attempt and its last event tell the same at the end of every
-- transaction, so that nobody follows into a gap or waits for an end that has been.
CREATE FUNCTION deployment_is_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM deployment d
    JOIN publish_attempt a ON a.deployment_id = d.id AND a.number = d.attempt
    JOIN deployment_event e ON e.deployment_id = d.id AND e.sequence = d.sequence
    WHERE d.id = NEW.id AND e.state = d.state AND e.attempt = d.attempt
      AND (a.state = d.state OR (a.state = 'abandoned' AND d.state = 'failed'))) THEN
    RAISE EXCEPTION 'a deployment changes together with its attempt and with an event'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'deployment_is_told', TABLE = 'deployment';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER deployment_is_told AFTER INSERT OR UPDATE OF state, attempt, sequence ON deployment
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION deployment_is_told();

-- Invariant: an event has the number that its deployment counts, so that there is no gap.
CREATE FUNCTION deployment_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.sequence IS DISTINCT FROM (SELECT sequence FROM deployment WHERE id = NEW.deployment_id) THEN
    RAISE EXCEPTION 'an event has the number of its deployment''s change'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'deployment_event_is_counted', TABLE = 'deployment_event';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER deployment_event_guard BEFORE INSERT ON deployment_event
  FOR EACH ROW EXECUTE FUNCTION deployment_event_guard();

-- Invariant: what was told stays told.
CREATE FUNCTION row_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a % never changes', TG_TABLE_NAME
    USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_is_final', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER deployment_event_is_final BEFORE UPDATE OR DELETE ON deployment_event
  FOR EACH ROW EXECUTE FUNCTION row_is_final();
CREATE TRIGGER deployment_event_is_kept BEFORE TRUNCATE ON deployment_event
  FOR EACH STATEMENT EXECUTE FUNCTION row_is_final();

-- Tells every process that follows: a hint that there is something to read, sent with the commit.
CREATE FUNCTION deployment_event_tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('holdfast_deployment', NEW.deployment_id::text);
  RETURN NULL;
END $$;
CREATE TRIGGER deployment_event_tell AFTER INSERT ON deployment_event
  FOR EACH ROW EXECUTE FUNCTION deployment_event_tell();
