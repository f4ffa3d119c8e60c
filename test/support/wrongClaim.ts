import type pg from "pg";

/**
 * Replaces the claim by the mistake that it exists to prevent: it reads, then ends whatever runs, then
 * starts. Each step is right by itself, and two at once both start. Everything else stays as it is. Never
 * used by the product: the proof that the tests can see two builds.
 */
export async function wrongClaim(pool: pg.Pool): Promise<void> {
  await pool.query(`
    CREATE OR REPLACE FUNCTION publish_claim(
      p_attempt uuid, p_project uuid, p_organization uuid, p_slug text, p_source text, p_owner text,
      p_claim_timeout_seconds integer, p_build_limit_seconds integer, p_cool_down_seconds integer
    ) RETURNS publish_claim_answer LANGUAGE plpgsql VOLATILE AS $$
    DECLARE
      v deployment;
      a publish_claim_answer;
    BEGIN
      SELECT * INTO v FROM deployment WHERE project_id = p_project;
      IF v.state = 'building' THEN
        a.outcome := 'in_progress'; a.d := v;
        RETURN a;
      END IF;
      -- What a request thinks about between its read and its write.
      PERFORM pg_sleep(0.1);
      INSERT INTO deployment (project_id, slug, state, attempt, claimed_at, heartbeat_at)
      VALUES (p_project, p_slug, 'building', 1, clock_timestamp(), clock_timestamp())
      ON CONFLICT (project_id) DO UPDATE
      SET state = 'building', attempt = deployment.attempt + 1, error = NULL,
          claimed_at = clock_timestamp(), heartbeat_at = clock_timestamp()
      RETURNING * INTO v;
      UPDATE publish_attempt SET state = 'abandoned', finished_at = clock_timestamp()
      WHERE deployment_id = v.id AND state = 'building';
      INSERT INTO publish_attempt (id, deployment_id, number, slug, source, owner)
      VALUES (p_attempt, v.id, v.attempt, p_slug, p_source, p_owner);
      PERFORM deployment_event_add(v.id, 'begun');
      a.outcome := 'claimed'; a.d := v;
      RETURN a;
    END $$`);
}
