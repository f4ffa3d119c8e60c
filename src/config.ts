import { z } from "zod";

const whole = (fallback: number, min: number, max: number) => {
  const error = `must be a whole number from ${min} to ${max}`;
  return z.coerce.number({ error }).int({ error }).min(min, { error }).max(max, { error }).default(fallback);
};
const flag = (fallback: "0" | "1") =>
  z
    .enum(["0", "1"], { error: "must be 0 or 1" })
    .default(fallback)
    .transform((value) => value === "1");
const httpUrl = z.url({ protocol: /^https?$/, error: "must be an http(s) URL" });
const postgresUrl = z.url({ protocol: /^postgres(ql)?$/, error: "must be a postgresql:// URL" });
/** Variables whose value may hold a secret. */
const SECRET = ["HOLDFAST_OPERATOR_TOKEN", "DATABASE_URL", "HOLDFAST_LISTEN_DATABASE_URL"];

const environment = z.object({
  PORT: whole(4000, 0, 65535),
  HOST: z.string().default("127.0.0.1"),
  DATABASE_URL: postgresUrl.optional(),
  DATABASE_POOL_SIZE: whole(10, 1, 500),
  HOLDFAST_NAMED_STATEMENTS: flag("1"),
  HOLDFAST_LISTEN_DATABASE_URL: postgresUrl.optional(),
  HOLDFAST_MIGRATE: flag("1"),
  HOLDFAST_DATA_DIR: z.string().default(".holdfast"),
  HOLDFAST_DEMO: flag("1"),
  HOLDFAST_OPERATOR_TOKEN: z
    .string()
    .regex(/^[\x21-\x7e]{20,500}$/, { error: "must have 20 to 500 printable characters without spaces" })
    .optional(),
  HOLDFAST_HOLD_SECONDS: whole(900, 1, 2_592_000),
  HOLDFAST_RACK_HOLD_SECONDS: whole(14_400, 1, 2_592_000),
  HOLDFAST_HOLD_LIMIT: whole(10, 0, 100_000),
  HOLDFAST_COOL_DOWN_SECONDS: whole(0, 0, 86_400),
  HOLDFAST_SWEEP_SECONDS: whole(60, 0, 86_400),
  ORCHESTRATOR_URL: httpUrl.transform((value) => value.replace(/\/+$/, "")).optional(),
  HOLDFAST_ORCHESTRATOR_TIMEOUT_SECONDS: whole(10, 1, 300),
  HOLDFAST_ORCHESTRATOR_OUTAGE_SECONDS: whole(60, 0, 86_400),
  HOLDFAST_HEARTBEAT_SECONDS: whole(30, 1, 3600),
  HOLDFAST_CLAIM_TIMEOUT_SECONDS: whole(300, 2, 86_400),
  HOLDFAST_BUILD_LIMIT_SECONDS: whole(7200, 1, 604_800),
  HOLDFAST_PUBLISH_COOL_DOWN_SECONDS: whole(0, 0, 86_400),
  HOLDFAST_APP_DOMAIN: z
    .string()
    .regex(/^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?::\d{1,5})?$/, {
      error: "must be a domain in lower case",
    })
    .max(180, { error: "must have at most 180 characters" })
    .default("apps.localhost"),
  HOLDFAST_ALLOWED_ORIGINS: z
    .string()
    .default("")
    .transform((value) =>
      value
        .split(",")
        .map((origin) => origin.trim())
        .filter((origin) => origin !== ""),
    )
    .pipe(z.array(httpUrl.transform((value) => new URL(value).origin))),
  HOLDFAST_JWKS_URL: httpUrl.optional(),
  HOLDFAST_JWT_ISSUER: z.string().optional(),
  HOLDFAST_JWT_AUDIENCE: z.string().optional(),
  HOLDFAST_LOG_LEVEL: z.enum(["fatal", "error", "warn", "info", "debug", "trace", "silent"]).default("info"),
});

/** What the environment decides about publishing. All processes on one database should agree on it. */
export interface PublishingConfig {
  /** The build service; null: a simulated one runs beside the server. */
  readonly orchestratorUrl: string | null;
  /** How long one call of the build service may take, in milliseconds. */
  readonly orchestratorTimeoutMs: number;
  /** For how long a running build bears a build service that cannot be asked, in milliseconds. */
  readonly orchestratorOutageMs: number;
  /** Seconds between two beats of a running publish. */
  readonly heartbeatSeconds: number;
  /** Seconds without a beat after which a claim may be taken over; at least two heartbeats. */
  readonly claimTimeoutSeconds: number;
  /** Seconds that a build may take at the most. */
  readonly buildLimitSeconds: number;
  /** Seconds between two publishes of one project; 0 = no cool-down. */
  readonly coolDownSeconds: number;
  /** Apps are served at `https://<slug>.<domain>`. */
  readonly appDomain: string;
}

/** Everything that the environment decides. Read once, at start. */
export interface Config {
  readonly host: string;
  /** 0 lets the system choose a free port. */
  readonly port: number;
  /** null: the embedded PostgreSQL in `dataDir`. */
  readonly databaseUrl: string | null;
  /** Connections of this process at the most, 1 to 500. */
  readonly poolSize: number;
  /** Off behind a pooler that does not carry prepared statements from one connection to another. */
  readonly namedStatements: boolean;
  /** Where this process listens for notifications, which no pooler passes on; null: `databaseUrl`. */
  readonly listenDatabaseUrl: string | null;
  /** Whether a start applies pending migrations. */
  readonly migrate: boolean;
  /** Directory of the embedded database and of the generated operator token. */
  readonly dataDir: string;
  /** Whether the first start on the embedded database adds demo data; never with `databaseUrl`. */
  readonly demo: boolean;
  /** A secret that is made an OPERATOR token at start, at least 20 characters. */
  readonly operatorToken: string | null;
  /** How long a hold lasts, in seconds. */
  readonly holdSeconds: number;
  /** How long rack units are held, in seconds. */
  readonly rackHoldSeconds: number;
  /** Machines that an organization may hold at one time, unless it has a limit of its own. */
  readonly holdLimit: number;
  /** Seconds between two new holds of one organization; 0 = no cool-down. */
  readonly coolDownSeconds: number;
  /** Seconds between two sweeps in this process; 0 = this process does not sweep. */
  readonly sweepSeconds: number;
  readonly publishing: PublishingConfig;
  /** Origins, besides its own, whose pages may call this API. */
  readonly allowedOrigins: readonly string[];
  /** Accept JWTs signed by a key of this set; null = opaque tokens only. */
  readonly jwt: {
    readonly jwksUrl: string;
    readonly issuer: string | null;
    readonly audience: string | null;
  } | null;
  readonly logLevel: string;
}

/** The environment is wrong; the message has one readable line a variable. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
}

/**
 * Reads and validates the environment. An empty variable counts as not set.
 * @throws ConfigError naming every variable that is wrong.
 */
export function configRead(variables: NodeJS.ProcessEnv = process.env): Config {
  const given = Object.fromEntries(Object.entries(variables).filter(([, value]) => value !== ""));
  const parsed = environment.safeParse(given);
  if (!parsed.success) {
    const lines = parsed.error.issues.map((issue) => {
      const name = String(issue.path[0]);
      return `  ${name}=${SECRET.includes(name) ? "…" : variables[name]}: ${issue.message}`;
    });
    throw new ConfigError(`The environment is not valid:\n${lines.join("\n")}`);
  }
  const env = parsed.data;
  if (
    env.HOLDFAST_JWKS_URL === undefined &&
    (env.HOLDFAST_JWT_ISSUER ?? env.HOLDFAST_JWT_AUDIENCE) !== undefined
  ) {
    throw new ConfigError(
      "The environment is not valid:\n  HOLDFAST_JWT_ISSUER and HOLDFAST_JWT_AUDIENCE need HOLDFAST_JWKS_URL",
    );
  }
  if (env.HOLDFAST_CLAIM_TIMEOUT_SECONDS < 2 * env.HOLDFAST_HEARTBEAT_SECONDS) {
    throw new ConfigError(
      "The environment is not valid:\n  HOLDFAST_CLAIM_TIMEOUT_SECONDS must be at least twice HOLDFAST_HEARTBEAT_SECONDS",
    );
  }
  return {
    host: env.HOST,
    port: env.PORT,
    databaseUrl: env.DATABASE_URL ?? null,
    poolSize: env.DATABASE_POOL_SIZE,
    namedStatements: env.HOLDFAST_NAMED_STATEMENTS,
    listenDatabaseUrl: env.HOLDFAST_LISTEN_DATABASE_URL ?? null,
    migrate: env.HOLDFAST_MIGRATE,
    dataDir: env.HOLDFAST_DATA_DIR,
    demo: env.HOLDFAST_DEMO && env.DATABASE_URL === undefined,
    operatorToken: env.HOLDFAST_OPERATOR_TOKEN ?? null,
    holdSeconds: env.HOLDFAST_HOLD_SECONDS,
    rackHoldSeconds: env.HOLDFAST_RACK_HOLD_SECONDS,
    holdLimit: env.HOLDFAST_HOLD_LIMIT,
    coolDownSeconds: env.HOLDFAST_COOL_DOWN_SECONDS,
    sweepSeconds: env.HOLDFAST_SWEEP_SECONDS,
    publishing: {
      orchestratorUrl: env.ORCHESTRATOR_URL ?? null,
      orchestratorTimeoutMs: env.HOLDFAST_ORCHESTRATOR_TIMEOUT_SECONDS * 1000,
      orchestratorOutageMs: env.HOLDFAST_ORCHESTRATOR_OUTAGE_SECONDS * 1000,
      heartbeatSeconds: env.HOLDFAST_HEARTBEAT_SECONDS,
      claimTimeoutSeconds: env.HOLDFAST_CLAIM_TIMEOUT_SECONDS,
      buildLimitSeconds: env.HOLDFAST_BUILD_LIMIT_SECONDS,
      coolDownSeconds: env.HOLDFAST_PUBLISH_COOL_DOWN_SECONDS,
      appDomain: env.HOLDFAST_APP_DOMAIN,
    },
    allowedOrigins: env.HOLDFAST_ALLOWED_ORIGINS,
    jwt:
      env.HOLDFAST_JWKS_URL === undefined
        ? null
        : {
            jwksUrl: env.HOLDFAST_JWKS_URL,
            issuer: env.HOLDFAST_JWT_ISSUER ?? null,
            audience: env.HOLDFAST_JWT_AUDIENCE ?? null,
          },
    logLevel: env.HOLDFAST_LOG_LEVEL,
  };
}
