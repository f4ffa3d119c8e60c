-- What can happen to a deployment: one function a transition, one call a transaction. Each begins with
-- one conditional UPDATE of the deployment's row, whose WHERE is the guard: it waits for the row, and is
-- judged again on the row's newest version. Only then the attempt, the slugs (by trigger) and the event
-- follow. Deadlines are judged by clock_timestamp(). Every write after the claim names the attempt;
-- no row changed means that the claim is lost, and nothing else is written.
-- p_organization limits what the caller may see (null = everything).

-- Appends the event for the deployment as it is now, under the row lock that the caller holds.
CREATE FUNCTION deployment_event_add(p_deployment uuid, p_message text) RETURNS void LANGUAGE sql VOLATILE AS $$
  UPDATE deployment SET sequence = sequence + 1 WHERE id = p_deployment;
  INSERT INTO deployment_event (deployment_id, sequence, message, slug, state, attempt, claimed_at, heartbeat_at,
                                error, live_attempt, live_slug, live_url)
  SELECT id, sequence, p_message, slug, state, attempt, claimed_at, heartbeat_at, error, live_attempt, live_slug, live_url
  FROM deployment WHERE id = p_deployment;
$$;

CREATE TYPE publish_claim_answer AS (
  -- 'claimed' | 'in_progress' | 'slug_taken' | 'cooling_down' | 'module_disabled' | 'not_found' | 'unsettled'
  outcome text,
  -- claimed, in_progress: the row as it was judged.
  d deployment,
  -- claimed: the attempt that was taken from an owner who had stopped beating; else null.
  taken_over integer,
  -- cooling_down.
  retry_at timestamptz
);

-- Takes the right to publish a project: the row is marked building if nobody is, or if its owner's last
-- beat is older than the claim time-out, or its build longer than the limit; the first publish inserts it.
-- Locks: the project's deployment row, then slugs. Twice at once: the UPDATE of the second waits for the
-- first and then matches nothing ('in_progress'); the INSERT of the second waits on
-- deployment_one_per_project and then goes round to the UPDATE; another project's INSERT of the same slug
-- waits on app_slug_names_one_app, also for a first publish that is not committed yet, and then looks
-- whose it is. 'unsettled': five rounds met five different neighbours; nothing was changed.
-- p_attempt: the attempt's id, chosen by the caller, so that he can ask for it when the answer got lost; it
-- is the orchestrator's idempotency key as well.
-- Does not check the slug's grammar beyond the table's, nor reserved words.
CREATE FUNCTION publish_claim(
  p_attempt uuid, p_project uuid, p_organization uuid, p_slug text, p_source text, p_owner text,
  p_claim_timeout_seconds integer, p_build_limit_seconds integer, p_cool_down_seconds integer
) RETURNS publish_claim_answer LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
DECLARE
  v_organization uuid;
  v deployment;
  v_old publish_attempt;
  v_now timestamptz;
  v_constraint text;
  a publish_claim_answer;
BEGIN
  SELECT organization_id INTO v_organization FROM project
  WHERE id = p_project AND (p_organization IS NULL OR organization_id = p_organization);
  IF NOT FOUND THEN a.outcome := 'not_found'; RETURN a; END IF;
  IF NOT module_enabled(v_organization, 'publishing') THEN a.outcome := 'module_disabled'; RETURN a; END IF;

  FOR v_round IN 1..5 LOOP
    BEGIN
      UPDATE deployment
      SET state = 'building', attempt = attempt + 1, slug = p_slug, error = NULL,
          claimed_at = clock_timestamp(), heartbeat_at = clock_timestamp()
      WHERE project_id = p_project
        AND CASE WHEN state = 'building'
              THEN heartbeat_at < clock_timestamp() - make_interval(secs => p_claim_timeout_seconds)
                OR claimed_at < clock_timestamp() - make_interval(secs => p_build_limit_seconds)
              ELSE p_cool_down_seconds = 0
                OR claimed_at <= clock_timestamp() - make_interval(secs => p_cool_down_seconds)
                -- A server's end is not the customer's doing.
                OR EXISTS (SELECT FROM publish_attempt h WHERE h.deployment_id = deployment.id
                           AND h.number = deployment.attempt AND h.state = 'abandoned') END
      RETURNING * INTO v;
      IF NOT FOUND THEN
        SELECT * INTO v FROM deployment WHERE project_id = p_project;
        IF FOUND THEN
          a.d := v;
          IF v.state = 'building' THEN
            IF v.heartbeat_at < clock_timestamp() - make_interval(secs => p_claim_timeout_seconds)
               OR v.claimed_at < clock_timestamp() - make_interval(secs => p_build_limit_seconds) THEN
              CONTINUE; -- It went stale between the two statements.
            END IF;
            a.outcome := 'in_progress';
            RETURN a;
          END IF;
          v_now := clock_timestamp();
          a.retry_at := v.claimed_at + make_interval(secs => p_cool_down_seconds);
          IF p_cool_down_seconds = 0 OR a.retry_at <= v_now THEN CONTINUE; END IF; -- It ended between the two.
          a.outcome := 'cooling_down';
          RETURN a;
        END IF;
        INSERT INTO deployment (project_id, slug, state, attempt, claimed_at, heartbeat_at)
        VALUES (p_project, p_slug, 'building', 1, clock_timestamp(), clock_timestamp())
        RETURNING * INTO v;
      END IF;
    EXCEPTION WHEN unique_violation THEN
      GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
      IF v_constraint = 'deployment_one_per_project' THEN CONTINUE; END IF;
      IF v_constraint <> 'app_slug_names_one_app' THEN RAISE; END IF;
      -- Either the owner is known by now, or he has let go of it meanwhile.
      SELECT d.* INTO v FROM app_slug s JOIN deployment d ON d.id = s.deployment_id WHERE s.slug = p_slug;
      IF NOT FOUND OR v.project_id = p_project THEN CONTINUE; END IF;
      -- A dead owner's attempt to rename its app keeps nobody from the name.
      IF v.slug = p_slug AND v.live_slug <> p_slug
         AND publish_abandon_if_stale(v.id, v.attempt, p_claim_timeout_seconds, p_build_limit_seconds) THEN
        CONTINUE;
      END IF;
      a.outcome := 'slug_taken';
      RETURN a;
    END;

    UPDATE publish_attempt
    SET state = 'abandoned', finished_at = clock_timestamp(),
        error = CASE WHEN started_at < clock_timestamp() - make_interval(secs => p_build_limit_seconds)
                     THEN 'The build took longer than it may, and a newer publish took over.'
                     ELSE 'Its process stopped beating, and a newer publish took over.' END,
        stop_due_at = CASE WHEN build_asked_at IS NOT NULL THEN clock_timestamp() END
    WHERE deployment_id = v.id AND state = 'building'
    RETURNING * INTO v_old;
    IF FOUND THEN
      a.taken_over := v_old.number;
      -- The end of the old attempt, for those who follow it; the row itself builds already.
      UPDATE deployment SET sequence = sequence + 1 WHERE id = v.id;
      INSERT INTO deployment_event (deployment_id, sequence, message, slug, state, attempt, claimed_at, error,
                                    live_attempt, live_slug, live_url)
      VALUES (v.id, v.sequence + 1, format('Attempt %s was abandoned. %s', v_old.number, v_old.error),
              v_old.slug, 'failed', v_old.number, v_old.started_at, v_old.error, v.live_attempt, v.live_slug, v.live_url);
    END IF;
    INSERT INTO publish_attempt (id, deployment_id, number, slug, source, owner, started_at)
    VALUES (p_attempt, v.id, v.attempt, p_slug, p_source, p_owner, v.claimed_at);
    PERFORM deployment_event_add(v.id, format('Attempt %s has begun.', v.attempt));
    a.outcome := 'claimed';
    SELECT now INTO a.d FROM deployment now WHERE now.id = v.id;
    RETURN a;
  END LOOP;
  a.outcome := 'unsettled';
  RETURN a;
END $$;

-- false: the claim is lost. Twice: the same result.
CREATE FUNCTION publish_beat_if_owned(p_deployment uuid, p_attempt integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
BEGIN
  UPDATE deployment SET heartbeat_at = clock_timestamp()
  WHERE id = p_deployment AND attempt = p_attempt AND state = 'building';
  RETURN FOUND;
END $$;

-- Notes that a build is about to be asked for, so that whoever cleans up knows that one may exist; a beat
-- as well. false: the claim is lost, and nobody may be asked. Twice: the same result.
CREATE FUNCTION publish_ask_if_owned(p_deployment uuid, p_attempt integer, p_orchestrator_url text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
BEGIN
  IF NOT publish_beat_if_owned(p_deployment, p_attempt) THEN RETURN false; END IF;
  UPDATE publish_attempt SET build_asked_at = coalesce(build_asked_at, clock_timestamp()), orchestrator_url = p_orchestrator_url
  WHERE deployment_id = p_deployment AND number = p_attempt;
  RETURN true;
END $$;

-- Writes the build's id (null: keeps it) and tells what goes on; a beat as well. false: the claim is lost.
CREATE FUNCTION publish_progress_if_owned(p_deployment uuid, p_attempt integer, p_build_id text, p_message text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
BEGIN
  IF NOT publish_beat_if_owned(p_deployment, p_attempt) THEN RETURN false; END IF;
  IF p_build_id IS NOT NULL THEN
    UPDATE publish_attempt SET build_id = p_build_id WHERE deployment_id = p_deployment AND number = p_attempt;
  END IF;
  PERFORM deployment_event_add(p_deployment, p_message);
  RETURN true;
END $$;

-- The rest of an attempt's end, once its deployment row has left 'building' under the caller's lock.
-- p_stop: the build may be running still, and the orchestrator is to be told.
CREATE FUNCTION publish_attempt_end(
  p_deployment uuid, p_attempt integer, p_state text, p_error text, p_url text, p_message text, p_stop boolean
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_state = 'live' THEN
    UPDATE publish_attempt SET state = 'superseded' WHERE deployment_id = p_deployment AND state = 'live';
  END IF;
  UPDATE publish_attempt
  SET state = p_state, error = p_error, url = p_url, finished_at = clock_timestamp(),
      stop_due_at = CASE WHEN p_stop AND build_asked_at IS NOT NULL THEN clock_timestamp() END
  WHERE deployment_id = p_deployment AND number = p_attempt AND state = 'building';
  PERFORM deployment_event_add(p_deployment, p_message);
END $$;

-- The owner ends its attempt: p_state 'live' | 'failed' | 'abandoned' (handed back). false: the claim is
-- lost; another attempt's outcome is none of its business. Twice: the second finds it lost.
CREATE FUNCTION publish_finish_if_owned(
  p_deployment uuid, p_attempt integer, p_state text, p_error text, p_url text, p_message text, p_stop boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
BEGIN
  IF p_state = 'live' THEN
    UPDATE deployment
    SET state = 'live', live_attempt = attempt, live_slug = slug, live_url = p_url, heartbeat_at = clock_timestamp()
    WHERE id = p_deployment AND attempt = p_attempt AND state = 'building';
  ELSE
    UPDATE deployment
    SET state = 'failed', error = p_error, slug = coalesce(live_slug, slug), heartbeat_at = clock_timestamp()
    WHERE id = p_deployment AND attempt = p_attempt AND state = 'building';
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM publish_attempt_end(p_deployment, p_attempt, p_state, p_error, p_url, p_message, p_stop);
  RETURN true;
END $$;

-- 'cancelled' | 'not_running' | 'not_found'. Terminal, whatever the build does afterwards. Works with the
-- switch closed. Twice at once: one cancels, the other is told that it does not run.
CREATE FUNCTION publish_cancel(p_deployment uuid, p_organization uuid, p_attempt integer) RETURNS text
LANGUAGE plpgsql VOLATILE SET lock_timeout = '3s' AS $$
BEGIN
  PERFORM FROM deployment d JOIN project p ON p.id = d.project_id
  WHERE d.id = p_deployment AND (p_organization IS NULL OR p.organization_id = p_organization);
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  UPDATE deployment SET state = 'cancelled', slug = coalesce(live_slug, slug)
  WHERE id = p_deployment AND attempt = p_attempt AND state = 'building';
  IF NOT FOUND THEN RETURN 'not_running'; END IF;
  PERFORM publish_attempt_end(p_deployment, p_attempt, 'cancelled', NULL, NULL,
                              format('Attempt %s was cancelled.', p_attempt), true);
  RETURN 'cancelled';
END $$;

-- Ends an attempt whose owner is dead, or hangs though it beats. The test is repeated here, on the row as
-- it is: a beat that came meanwhile keeps the claim. false: nothing to clean. Passes over a row that
-- somebody has locked: he is changing it.
CREATE FUNCTION publish_abandon_if_stale(
  p_deployment uuid, p_attempt integer, p_claim_timeout_seconds integer, p_build_limit_seconds integer
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_silent boolean;
  v_error text;
BEGIN
  SELECT heartbeat_at < clock_timestamp() - make_interval(secs => p_claim_timeout_seconds) INTO v_silent
  FROM deployment WHERE id = p_deployment AND attempt = p_attempt AND state = 'building'
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN false; END IF;
  v_error := CASE WHEN v_silent THEN 'The process that was publishing stopped beating and is taken for dead. Publish again.'
                  ELSE 'The build took longer than it may. Publish again, or find out why it hangs.' END;
  UPDATE deployment SET state = 'failed', error = v_error, slug = coalesce(live_slug, slug)
  WHERE id = p_deployment AND attempt = p_attempt AND state = 'building'
    AND (heartbeat_at < clock_timestamp() - make_interval(secs => p_claim_timeout_seconds)
      OR claimed_at < clock_timestamp() - make_interval(secs => p_build_limit_seconds));
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM publish_attempt_end(p_deployment, p_attempt, 'abandoned', v_error, NULL,
                              format('Attempt %s was abandoned. %s', p_attempt, v_error), true);
  RETURN true;
END $$;
