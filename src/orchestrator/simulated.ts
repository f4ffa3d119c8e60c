// A build service that builds nothing: real HTTP, made-up builds. A build's state is a function of its age,
// so that nothing runs in the background and a build costs a few bytes. Everything is gone with the
// process: that is what tells it from a real one.
//
// What a build does can be asked for in its source (`…?simulate=fail`), so that each case can be tried
// by hand and staged in a test; see KNOBS.
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text as textOf } from "node:stream/consumers";
import { z } from "zod";

/** What `?simulate=` in a source can ask for. */
export const KNOBS = {
  fail: "the build fails halfway",
  slow: "it takes ten times as long",
  never: "it builds for ever",
  deaf: "it goes on and succeeds although it was told to stop",
  refuse: "every request for it is answered with 503",
  "refuse-twice": "the first two requests for it are answered with 503, and nothing begins",
  "lost-answer": "the build begins, but the first request for it is never answered",
} as const;

/** How the service behaves for builds that ask for nothing else. */
export interface SimulatedOptions {
  readonly host: string;
  /** 0: a free one. */
  readonly port: number;
  /** Length of a build. */
  readonly buildSeconds: number;
  /** Apps are said to be served at `https://<slug>.<domain>`. */
  readonly appDomain: string;
}

/** A simulated build service that runs. */
export interface SimulatedOrchestrator {
  readonly url: string;
  close(): Promise<void>;
}

interface Build {
  readonly buildId: string;
  readonly key: string;
  readonly deploymentId: string;
  readonly slug: string;
  readonly attempt: number;
  readonly knob: keyof typeof KNOBS | null;
  readonly beganAt: number;
  readonly lengthMs: number;
  stoppedAt: number | null;
  /** How often it was asked for, looked at, and told to stop. */
  posts: number;
  gets: number;
  deletes: number;
}

const request = z.object({
  deploymentId: z.string().min(1).max(500),
  slug: z.string().regex(/^[a-z0-9-]{1,63}$/),
  attempt: z.int().min(1),
  source: z.string().min(1).max(10_000),
});

const LINES = [
  "The build waits for a free builder (simulated).",
  "Fetching the source (simulated).",
  "Installing the dependencies (simulated).",
  "Compiling (simulated).",
  "Packing the image (simulated).",
  "Starting the app (simulated).",
];

/**
 * Starts the service.
 *
 * | call | answer |
 * | --- | --- |
 * | `POST /builds` with `Idempotency-Key` | 201 `{buildId}`; the same key again: 200 and the same build |
 * | `GET /builds/:id` | `{state, message, url, error}` |
 * | `DELETE /builds/:id` | 204, also when it is over |
 * | `GET /builds` | every build, with how often it was asked for, looked at, and stopped |
 */
export async function orchestratorStart(options: SimulatedOptions): Promise<SimulatedOrchestrator> {
  const builds = new Map<string, Build>();
  const byKey = new Map<string, Build>();
  const refusals = new Map<string, number>();

  const server = createServer((req, res) => {
    route(req, res).catch(() => {
      if (!res.headersSent) respond(res, 500, { error: "unexpected" });
    });
  });

  async function route(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const [, collection, id, ...rest] = new URL(req.url ?? "/", "http://orchestrator").pathname.split("/");
    if (collection !== "builds" || rest.length > 0) return respond(res, 404, { error: "not found" });
    if (id === undefined) {
      if (req.method === "POST") return create(req, res);
      if (req.method === "GET") return respond(res, 200, [...builds.values()].map(listed));
      return respond(res, 405, { error: "method not allowed" });
    }
    const build = builds.get(id);
    if (build === undefined) return respond(res, 404, { error: "no such build" });
    if (req.method === "GET") {
      build.gets += 1;
      return respond(res, 200, stateOf(build));
    }
    if (req.method !== "DELETE") return respond(res, 405, { error: "method not allowed" });
    build.deletes += 1;
    const over = ["succeeded", "failed"].includes(stateOf(build).state);
    if (build.knob !== "deaf" && !over) build.stoppedAt = performance.now();
    res.writeHead(204).end();
  }

  async function create(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const key = req.headers["idempotency-key"];
    const body = request.safeParse(json(await textOf(req)));
    if (typeof key !== "string" || key === "")
      return respond(res, 400, { error: "Idempotency-Key is missing" });
    if (!body.success) return respond(res, 400, { error: z.prettifyError(body.error) });
    const { source, ...rest } = body.data;
    const knob = knobOf(source);
    const refused = (refusals.get(key) ?? 0) + 1;
    if (knob === "refuse" || (knob === "refuse-twice" && refused <= 2)) {
      refusals.set(key, refused);
      return respond(res, 503, { error: "no builder is free" });
    }
    const known = byKey.get(key);
    const build = known ?? {
      ...rest,
      buildId: randomUUID(),
      key,
      knob,
      beganAt: performance.now(),
      lengthMs: options.buildSeconds * 1000 * (knob === "slow" ? 10 : 1),
      stoppedAt: null,
      posts: 0,
      gets: 0,
      deletes: 0,
    };
    builds.set(build.buildId, build);
    byKey.set(key, build);
    build.posts += 1;
    if (knob === "lost-answer" && build.posts === 1) return;
    respond(res, known === undefined ? 201 : 200, { buildId: build.buildId });
  }

  function stateOf(build: Build) {
    if (build.stoppedAt !== null)
      return { state: "failed", message: "Stopped.", url: null, error: "The build was stopped." };
    const part = (performance.now() - build.beganAt) / build.lengthMs;
    if (build.knob === "fail" && part >= 0.5) {
      return {
        state: "failed",
        message: LINES[3],
        url: null,
        error: "Compiling failed: this build was asked to fail.",
      };
    }
    if (part >= 1 && build.knob !== "never") {
      return {
        state: "succeeded",
        message: "Done.",
        url: `https://${build.slug}.${options.appDomain}`,
        error: null,
      };
    }
    const line = LINES[Math.min(Math.floor(part * LINES.length), LINES.length - 1)];
    return { state: line === LINES[0] ? "queued" : "building", message: line, url: null, error: null };
  }

  function listed(build: Build) {
    const { buildId, key, deploymentId, slug, attempt, posts, gets, deletes } = build;
    return { buildId, key, deploymentId, slug, attempt, posts, gets, deletes, ...stateOf(build) };
  }

  server.listen(options.port, options.host);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${options.host.includes(":") ? `[${options.host}]` : options.host}:${port}`,
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, "close");
    },
  };
}

function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function knobOf(source: string): keyof typeof KNOBS | null {
  const asked = /[?#&]simulate=([a-z-]+)/.exec(source)?.[1];
  return asked !== undefined && Object.hasOwn(KNOBS, asked) ? (asked as keyof typeof KNOBS) : null;
}

function respond(res: ServerResponse, status: number, body: object): void {
  res.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}
