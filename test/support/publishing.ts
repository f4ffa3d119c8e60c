import { randomUUID } from "node:crypto";
import { print } from "graphql";
import type pg from "pg";
import type { PublishingConfig } from "../../src/config.ts";
import { globalIdDecode, globalIdEncode } from "../../src/graphql/globalId.ts";
import { waitUntil } from "./barrier.ts";
import { DeploymentEventsDocument, type DeploymentEventsSubscription } from "./operations.ts";
import { organizations, unique } from "./world.ts";

/** A build as the simulated orchestrator lists it. */
export interface ListedBuild {
  readonly buildId: string;
  readonly key: string;
  readonly deploymentId: string;
  readonly slug: string;
  readonly attempt: number;
  readonly posts: number;
  readonly gets: number;
  readonly deletes: number;
  readonly state: "queued" | "building" | "succeeded" | "failed";
  readonly error: string | null;
}

/** Every build that an orchestrator knows, or those of one deployment (global id). */
export async function buildsOf(orchestratorUrl: string, deploymentId?: string): Promise<ListedBuild[]> {
  const all = (await (await fetch(`${orchestratorUrl}/builds`)).json()) as ListedBuild[];
  return all.filter((build) => deploymentId === undefined || build.deploymentId === deploymentId);
}

/** Waits until the build service has the build of an attempt, and the database knows which it is. */
export async function buildKnown(pool: pg.Pool, deploymentId: string, attempt = 1): Promise<void> {
  await waitUntil(async () => {
    const { rows } = await pool.query(
      "SELECT FROM publish_attempt WHERE deployment_id = $1 AND number = $2 AND build_id IS NOT NULL",
      [uuidOf(deploymentId), attempt],
    );
    return rows.length === 1;
  }, `the build of attempt ${attempt} is known`);
}

/** Publishing as tests want it: quick beats, short time-outs. */
export function publishingConfig(
  orchestratorUrl: string,
  wish: Partial<PublishingConfig> = {},
): PublishingConfig {
  return {
    orchestratorUrl,
    orchestratorTimeoutMs: 1000,
    orchestratorOutageMs: 60_000,
    heartbeatSeconds: 30,
    claimTimeoutSeconds: 300,
    buildLimitSeconds: 7200,
    coolDownSeconds: 0,
    appDomain: "apps.test",
    ...wish,
  };
}

/** Inserts a project and returns its uuid. */
export async function project(pool: pg.Pool, organization?: string): Promise<string> {
  const owner = organization ?? (await organizations(pool, 1))[0];
  const { rows } = await pool.query<{ id: string }>(
    "INSERT INTO project (organization_id, name) VALUES ($1, $2) RETURNING id",
    [owner, unique("project")],
  );
  return (rows[0] as { id: string }).id;
}

/** The variables of publishApp. */
export function publish(projectId: string, slug: string, source = "https://git.test/app") {
  return { input: { projectId: globalIdEncode("Project", projectId), slug, source } };
}

/** A slug that no other call of this process returns. */
export function slug(): string {
  return `app-${randomUUID().slice(0, 13)}`;
}

/** The uuid in a global id. */
export function uuidOf(globalId: string): string {
  const decoded = globalIdDecode(globalId);
  if (decoded === null) throw new Error(`${globalId} is no global id`);
  return decoded.id;
}

/** One event of a stream as it arrived. */
export interface Streamed {
  readonly data: DeploymentEventsSubscription | null;
  readonly errors?: readonly { message: string; extensions?: Record<string, unknown> }[];
}
export type StreamedEvent = DeploymentEventsSubscription["deploymentEvents"];

/** A stream of deploymentEvents over a real connection. */
export interface Stream {
  readonly status: number;
  readonly headers: Headers;
  /** What has arrived so far. */
  readonly results: readonly Streamed[];
  /** Comment lines (pings) so far. */
  pings(): number;
  /** Resolves when the stream is over: true when the server completed it, false when it broke off. */
  readonly ended: Promise<boolean>;
  /** The events so far, without errors. */
  events(): StreamedEvent[];
  /** Goes away without a word. */
  drop(): void;
}

/** Subscribes, as a storefront's panel does: POST, server-sent events. */
export async function follow(
  url: string,
  secret: string,
  variables: { deploymentId: string; afterSequence?: number | null },
): Promise<Stream> {
  const dropped = new AbortController();
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "text/event-stream",
      authorization: `Bearer ${secret}`,
    },
    body: JSON.stringify({ query: print(DeploymentEventsDocument), variables }),
    signal: dropped.signal,
  });
  const results: Streamed[] = [];
  let pings = 0;
  const read = async (): Promise<boolean> => {
    let rest = "";
    let complete = false;
    try {
      const decoder = new TextDecoder();
      for await (const bytes of response.body as ReadableStream<Uint8Array>) {
        const chunk = decoder.decode(bytes, { stream: true });
        const parts = (rest + chunk).split("\n\n");
        rest = parts.pop() ?? "";
        for (const part of parts) {
          if (part.startsWith(":")) pings += 1;
          const name = /^event: ?(.*)$/m.exec(part)?.[1];
          if (name === "next") results.push(JSON.parse(/^data: ?(.*)$/m.exec(part)?.[1] ?? "null"));
          if (name === "complete") complete = true;
        }
      }
    } catch {
      return false;
    }
    return complete;
  };
  return {
    status: response.status,
    headers: response.headers,
    results,
    pings: () => pings,
    ended: read(),
    events: () =>
      results.flatMap(({ data }) => (data === null || data === undefined ? [] : [data.deploymentEvents])),
    drop: () => dropped.abort(),
  };
}

/**
 * What must be true of every deployment at every moment, read in SQL; one line a breach. One attempt
 * builds at most, and only the current one; one is live at most, and it is the newest that succeeded; a
 * slug is one app's; events have no gap; an attempt that is over says when, and one that builds is young
 * enough.
 */
export async function publishingBreaches(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query<{ breach: string }>(`
    SELECT 'deployment ' || d.id || ' is ' || d.state || ' and its attempt ' || coalesce(a.state, 'missing') AS breach
    FROM deployment d LEFT JOIN publish_attempt a ON a.deployment_id = d.id AND a.number = d.attempt
    WHERE a.state IS DISTINCT FROM d.state AND NOT (d.state = 'failed' AND a.state = 'abandoned')
    UNION ALL
    SELECT 'an old attempt builds: ' || a.id FROM publish_attempt a JOIN deployment d ON d.id = a.deployment_id
    WHERE a.state = 'building' AND a.number <> d.attempt
    UNION ALL
    SELECT 'live is not the newest that succeeded: ' || d.id FROM deployment d
    WHERE d.live_attempt IS DISTINCT FROM
      (SELECT max(number) FROM publish_attempt a WHERE a.deployment_id = d.id AND a.state IN ('live', 'superseded'))
      OR d.live_attempt IS DISTINCT FROM
      (SELECT max(number) FROM publish_attempt a WHERE a.deployment_id = d.id AND a.state = 'live')
    UNION ALL
    SELECT 'attempts are not numbered through: ' || deployment_id FROM publish_attempt GROUP BY deployment_id
    HAVING count(*) <> max(number) OR min(number) <> 1
    UNION ALL
    SELECT 'events have a gap: ' || d.id FROM deployment d
    WHERE (SELECT coalesce(max(sequence), 0) || '/' || count(*) FROM deployment_event e WHERE e.deployment_id = d.id)
          <> d.sequence || '/' || d.sequence
    UNION ALL
    SELECT 'the last event is not the present state: ' || d.id FROM deployment d
    JOIN deployment_event e ON e.deployment_id = d.id AND e.sequence = d.sequence
    WHERE (e.state, e.attempt, e.slug, e.error, e.live_attempt) IS DISTINCT FROM (d.state, d.attempt, d.slug, d.error, d.live_attempt)
    UNION ALL
    SELECT 'slugs of ' || d.id || ' are ' || array_to_string(s.used, ',') FROM deployment d
    CROSS JOIN LATERAL (SELECT array_agg(slug ORDER BY slug) AS used FROM app_slug s WHERE s.deployment_id = d.id) s
    WHERE s.used IS DISTINCT FROM (SELECT array_agg(DISTINCT u ORDER BY u) FROM unnest(ARRAY[d.slug, d.live_slug]) u WHERE u IS NOT NULL)`);
  return rows.map((row) => row.breach);
}
