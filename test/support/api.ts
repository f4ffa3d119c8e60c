import { once } from "node:events";
import type { AddressInfo } from "node:net";
import type { TypedDocumentNode } from "@graphql-typed-document-node/core";
import { print } from "graphql";
import { inject } from "vitest";
import { authenticateWith } from "../../src/access/authenticate.ts";
import { apiTokenCreate, apiTokenEnsure } from "../../src/access/tokens.ts";
import type { TokenRole } from "../../src/access/viewer.ts";
import { type Config, configRead } from "../../src/config.ts";
import { type Database, type Db, databaseOpen } from "../../src/database/client.ts";
import { type Log, logOpen } from "../../src/logging.ts";
import { type Hub, hubOpen } from "../../src/publishing/hub.ts";
import { orchestratorAt } from "../../src/publishing/orchestrator.ts";
import { publisherOpen } from "../../src/publishing/publisher.ts";
import { type ApiServices, apiOpen } from "../../src/server/http.ts";
import { poolerUrl } from "./pgbouncer.ts";

/** An answer of the API as a client sees it. */
export interface Answer<Data> {
  readonly status: number;
  readonly headers: Headers;
  readonly data: Data | null | undefined;
  readonly errors:
    | readonly { message: string; path?: (string | number)[]; extensions?: Record<string, unknown> }[]
    | undefined;
}

/** A real HTTP server in this process, on a test database. */
export interface TestApi {
  readonly url: string;
  readonly database: Database;
  readonly hub: Hub;
  /** Secret of an OPERATOR token. */
  readonly operator: string;
  /** Creates a token; for a tenant, of this organization (uuid). */
  token(role: TokenRole, organizationId?: string): Promise<string>;
  /** Sends a typed operation; throws when the answer has errors. */
  run<Data, Variables>(
    document: TypedDocumentNode<Data, Variables>,
    variables: Variables,
    secret?: string,
  ): Promise<Data>;
  /** Sends any text, as an outside client would, and returns whatever comes back. */
  send<Data = Record<string, unknown>>(
    query: string,
    variables?: unknown,
    secret?: string | null,
  ): Promise<Answer<Data>>;
  close(): Promise<void>;
}

const OPERATOR = "test-operator-token-0123456789";

/** What an API is built from, and what ends that. @param url where to listen for notifications. */
export function servicesOpen(
  db: Db,
  url: string,
  config: Config,
  log: Log,
): { services: ApiServices; end: () => Promise<void> } {
  const publisher = publisherOpen({
    db,
    log,
    config: config.publishing,
    // Nobody listens there: a test that publishes says where.
    orchestrator: orchestratorAt(
      config.publishing.orchestratorUrl ?? "http://127.0.0.1:2",
      config.publishing.orchestratorTimeoutMs,
    ),
  });
  const hub = hubOpen(db, config.listenDatabaseUrl ?? url, log);
  return {
    services: { db, config, log, authenticate: authenticateWith(db, config.jwt, log), publisher, hub },
    async end() {
      await Promise.all([hub.stop(), publisher.stop()]);
    },
  };
}

/**
 * Starts an API on `url`. Several on one database behave like several processes.
 * @param direct never by way of the run's pooler: for tests that have a wire of their own.
 */
export async function startApi(
  url: string,
  settings: Partial<
    Pick<
      Config,
      | "holdSeconds"
      | "holdLimit"
      | "coolDownSeconds"
      | "poolSize"
      | "namedStatements"
      | "listenDatabaseUrl"
      | "allowedOrigins"
      | "jwt"
      | "publishing"
    >
  > = {},
  direct = false,
): Promise<TestApi> {
  const pooler = direct ? null : inject("pooler");
  const config: Config = {
    ...configRead({ DATABASE_URL: url, HOLDFAST_LOG_LEVEL: "silent" }),
    ...(pooler === null ? {} : { namedStatements: false }),
    ...settings,
  };
  const log = logOpen(process.env["TEST_LOG_LEVEL"] ?? "silent");
  const database = databaseOpen(pooler === null ? url : poolerUrl(pooler, url), {
    poolSize: config.poolSize,
    namedStatements: config.namedStatements,
    onError: () => undefined,
  });
  await apiTokenEnsure(database.db, OPERATOR, "test operator");
  const { services, end } = servicesOpen(database.db, url, config, log);
  const api = apiOpen(services);
  api.server.listen(0, "127.0.0.1");
  await once(api.server, "listening");
  const endpoint = `http://127.0.0.1:${(api.server.address() as AddressInfo).port}/graphql`;

  const send: TestApi["send"] = async <Data>(
    query: string,
    variables?: unknown,
    secret: string | null = OPERATOR,
  ) => {
    const response = await fetch(endpoint, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        ...(secret === null ? {} : { authorization: `Bearer ${secret}` }),
      },
      body: JSON.stringify({ query, variables }),
    });
    const body = (await response.json()) as Pick<Answer<Data>, "data" | "errors">;
    return { status: response.status, headers: response.headers, data: body.data, errors: body.errors };
  };

  return {
    url: endpoint,
    database,
    hub: services.hub,
    operator: OPERATOR,
    async token(role, organizationId) {
      const created = await apiTokenCreate(database.db, {
        name: `test ${role}`,
        role,
        organizationId: organizationId ?? null,
        expiresAt: null,
      });
      return created.secret;
    },
    async run<Data, Variables>(
      document: TypedDocumentNode<Data, Variables>,
      variables: Variables,
      secret = OPERATOR,
    ) {
      const answer = await send<Data>(print(document), variables, secret);
      if (answer.errors !== undefined || answer.data === null || answer.data === undefined) {
        throw new Error(`the API answered with errors: ${JSON.stringify(answer.errors)}`);
      }
      return answer.data;
    },
    send,
    async close() {
      await Promise.all([api.drain(), end()]);
      await database.close();
    },
  };
}
