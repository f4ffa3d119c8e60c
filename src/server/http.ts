import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { EnvelopArmor } from "@escape.tech/graphql-armor";
import { renderGraphiQL } from "@graphql-yoga/render-graphiql";
import { GraphQLError } from "graphql";
import { createYoga, type Plugin } from "graphql-yoga";
import type { Authenticate } from "../access/authenticate.ts";
import type { Config } from "../config.ts";
import type { Db } from "../database/client.ts";
import { rowBudget } from "../graphql/connection.ts";
import type { GraphContext } from "../graphql/context.ts";
import { loadersFor } from "../graphql/loaders.ts";
import { errorMask } from "../graphql/masking.ts";
import { schema } from "../graphql/schema.ts";
import { type Log, requestScope } from "../logging.ts";
import type { Hub } from "../publishing/hub.ts";
import type { Publisher } from "../publishing/publisher.ts";
import { graphiql } from "./graphiql.ts";

/** What the API needs to answer. */
export interface ApiServices {
  readonly db: Db;
  readonly config: Config;
  readonly log: Log;
  readonly authenticate: Authenticate;
  readonly publisher: Publisher;
  readonly hub: Hub;
}

/** The HTTP server, and whether it still wants requests. */
export interface Api {
  readonly server: Server;
  /**
   * Stops accepting: `/ready` says so, idle connections are closed, and busy ones end with their answer,
   * or after 10 seconds without.
   * @returns when the last connection is closed.
   */
  drain(): Promise<void>;
}

const MAX_BODY_BYTES = 1_000_000;
const DRAIN_MS = 10_000;

/** Builds the API: `/graphql` with GraphiQL, `/health` (the process lives) and `/ready` (it can serve). */
export function apiOpen(services: ApiServices): Api {
  const { db, config, log, publisher, hub } = services;
  let draining = false;
  /** Sockets on which a request is being answered; the others are closed when the server drains. */
  const busy = new Set<Socket>();
  const sockets = new Set<Socket>();
  const yoga = createYoga<{ req: IncomingMessage; res: ServerResponse }, GraphContext>({
    schema,
    graphqlEndpoint: "/graphql",
    landingPage: false,
    multipart: false,
    batching: false,
    maxRequestBodySize: MAX_BODY_BYTES,
    graphiql,
    renderGraphiQL,
    cors:
      config.allowedOrigins.length === 0 ? false : { origin: [...config.allowedOrigins], credentials: false },
    maskedErrors: { maskError: errorMask(log) },
    logging: {
      debug: (...parts) => log.trace(parts.join(" ")),
      info: (...parts) => log.debug(parts.join(" ")),
      warn: (...parts) => log.warn(parts.join(" ")),
      // What is worth an operator's attention, errorMask has logged; the rest is the clients' own mistakes.
      error: (...parts) => log.debug(parts.join(" ")),
    },
    context: async ({ request, res }): Promise<GraphContext> => {
      const credential = request.headers.get("authorization");
      const viewer = await services.authenticate(credential);
      const gone = new AbortController();
      res.once("close", () => gone.abort());
      if (res.closed) gone.abort();
      return {
        viewer,
        db,
        config,
        log,
        publisher,
        hub,
        loaders: loadersFor(db, viewer),
        rows: rowBudget(),
        viewerAgain: () => services.authenticate(credential),
        renew() {
          Object.assign(this, { loaders: loadersFor(db, viewer), rows: rowBudget() });
        },
        gone: gone.signal,
      };
    },
    plugins: [refuseForgery(config.allowedOrigins), ...armor(), badValueCode(), unbufferedStreams()],
  });

  const server = createServer((req, res) => {
    const given = req.headers["x-request-id"];
    const requestId = typeof given === "string" && /^[\w.-]{1,100}$/.test(given) ? given : randomUUID();
    res.setHeader("x-request-id", requestId);
    if (draining) res.setHeader("connection", "close");
    requestScope.run({ requestId }, () => {
      const started = performance.now();
      busy.add(req.socket);
      res.once("close", () => {
        busy.delete(req.socket);
        // What was busy when the drain began is idle now.
        if (draining) server.closeIdleConnections();
        log.debug(
          {
            requestId,
            method: req.method,
            path: req.url?.split("?")[0],
            status: res.statusCode,
            ms: Math.round(performance.now() - started),
          },
          "request",
        );
      });
      const path = req.url?.split("?")[0];
      if (path === "/health") return respond(res, 200, { status: "ok" });
      if (path === "/ready") return void ready(res);
      if (path === "/") return void res.writeHead(302, { location: "/graphql" }).end();
      return void yoga(req, res);
    });
  });

  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });

  async function ready(res: ServerResponse): Promise<void> {
    if (draining) return respond(res, 503, { status: "draining" });
    try {
      await db.$queryRaw`SELECT 1`;
      respond(res, 200, { status: "ready" });
    } catch (error) {
      log.error({ err: error }, "the database does not answer");
      respond(res, 503, { status: "database unavailable" });
    }
  }

  return {
    server,
    async drain() {
      draining = true;
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const socket of sockets) if (!busy.has(socket)) socket.destroy();
      // A client that never finishes its request, or never reads its answer, holds nobody up for ever.
      const impatience = setTimeout(() => server.closeAllConnections(), DRAIN_MS);
      await closed;
      clearTimeout(impatience);
    },
  };
}

function respond(res: ServerResponse, status: number, body: object): void {
  res
    .writeHead(status, { "content-type": "application/json", "cache-control": "no-store" })
    .end(JSON.stringify(body));
}

/**
 * Refuses what a browser sends for a foreign page without asking first: anything but JSON by POST, and
 * every GET with the Origin of another site. (A mutation by GET is refused by Yoga itself.)
 */
function refuseForgery(allowedOrigins: readonly string[]): Plugin {
  return {
    onRequest({ request, fetchAPI, endResponse }) {
      const refuse = (status: number, message: string) =>
        endResponse(
          new fetchAPI.Response(
            JSON.stringify({ errors: [{ message, extensions: { code: "BAD_REQUEST" } }] }),
            {
              status,
              headers: { "content-type": "application/json" },
            },
          ),
        );
      if (request.method === "POST") {
        const type = request.headers.get("content-type")?.split(";")[0]?.trim().toLowerCase();
        if (type !== "application/json") refuse(415, "Send the request as application/json.");
        return;
      }
      const origin = request.headers.get("origin");
      if (
        request.method === "GET" &&
        origin !== null &&
        !allowedOrigins.includes(origin) &&
        !sameHost(origin, request)
      ) {
        refuse(403, "This page's origin is not allowed (HOLDFAST_ALLOWED_ORIGINS).");
      }
    },
  };
}

function sameHost(origin: string, request: Request): boolean {
  return URL.canParse(origin) && new URL(origin).host === request.headers.get("host");
}

/**
 * Stops documents that are bombs, and lets every honest one through: 15 levels, 100 aliases, 4,000
 * tokens. What the variables ask for is bounded by the request's rows (graphql/connection.ts).
 */
function armor() {
  return new EnvelopArmor({
    maxDepth: { n: 15 },
    maxAliases: { n: 100 },
    maxTokens: { n: 4000 },
    maxDirectives: { n: 100 },
    costLimit: { maxCost: 250_000, objectCost: 2, scalarCost: 1, depthCostFactor: 1.1 },
    blockFieldSuggestion: { enabled: false },
  }).protect().plugins;
}

/** A literal that does not fit its type is bad input, like a variable that does not. */
function badValueCode(): Plugin {
  return {
    onValidate() {
      return ({ result, setResult }) => {
        setResult(
          (result as readonly GraphQLError[]).map((error) => {
            const kind = error.nodes?.[0]?.kind ?? "";
            if (error.extensions["code"] !== undefined) return error;
            const code =
              kind.endsWith("Value") || kind === "ObjectField"
                ? "BAD_USER_INPUT"
                : "GRAPHQL_VALIDATION_FAILED";
            return new GraphQLError(error.message, { nodes: error.nodes ?? null, extensions: { code } });
          }),
        );
      };
    },
  };
}

/** Proxies (nginx by default) hold a response back until it fills a buffer; a stream's events are for now. */
function unbufferedStreams(): Plugin {
  return {
    onResponse({ response }) {
      if (response.headers.get("content-type")?.startsWith("text/event-stream") === true) {
        response.headers.set("x-accel-buffering", "no");
        response.headers.set("cache-control", "no-cache, no-transform");
      }
    },
  };
}
