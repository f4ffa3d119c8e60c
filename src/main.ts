#!/usr/bin/env node
// The `holdfast` command. Results go to standard output, problems to standard error.
// Exit codes: 0 done; 1 failed; 2 wrong usage or environment; 3 migrations are pending
// (`migrate --status`); 4 the import was refused; 130 stopped by a signal.
// What a command needs is loaded by its action: `--help` and a script's `token list` do not wait for a
// GraphQL server to be read from disk.
import { Command, CommanderError, InvalidArgumentError } from "commander";
import { TOKEN_ROLES, type TokenRole } from "./access/viewer.ts";
import { ConfigError, configRead } from "./config.ts";
import type { Database } from "./database/client.ts";
import { type Log, logOpen } from "./logging.ts";
import { InvalidInput, Refused } from "./refusal.ts";

/** Ends the command with this code, after a message that is meant for the person who ran it. */
class Exit extends Error {
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** A terminal's Ctrl-C comes twice under npm: from the terminal, and passed on by npm. */
const ONE_SIGNAL_MS = 1000;

/** For how long a process may drain: a connection that nobody answers on must not keep it for ever. */
const DRAIN_LIMIT_MS = 30_000;

const program = new Command("holdfast")
  .description("A GraphQL control plane for hosting panels: sells what exists once.")
  .exitOverride()
  .configureOutput({ outputError: (text, write) => write(text) });

program
  .command("serve", { isDefault: true })
  .description("serve the API, with GraphiQL, publish, and sweep overdue holds (default)")
  .action(async () => {
    const config = configRead();
    const log = logOpen(config.logLevel);
    const signal = signalCome();
    const { serve } = await import("./server/serve.ts");
    const serving = await serve(config, log);
    log.info({ url: serving.url }, "serving");
    const signIn =
      serving.tokenFile !== null
        ? `The operator token is in ${serving.tokenFile}`
        : config.operatorToken !== null
          ? "Sign in with the token of HOLDFAST_OPERATOR_TOKEN"
          : "Create a token with: npm run holdfast -- token create NAME --role operator";
    process.stderr.write(`\n  Holdfast is at ${serving.url}\n  ${signIn}\n\n`);
    await untilStopped(signal, log, () => serving.stop());
  });

program
  .command("worker")
  .description("sweep overdue holds and clean up dead publishes, without an API; any number side by side")
  .action(async () => {
    const config = configRead();
    const log = logOpen(config.logLevel);
    const signal = signalCome();
    const { databaseReady } = await import("./server/open.ts");
    const { sweeperStart } = await import("./workers/sweeper.ts");
    const { reaperStart } = await import("./publishing/publisher.ts");
    const database = await databaseReady(config, log, false);
    const sweeper = sweeperStart(database.db, config.sweepSeconds || 60, log);
    const reaper = reaperStart(database.db, config.publishing, log);
    log.info({ seconds: config.sweepSeconds || 60 }, "worker running");
    await untilStopped(signal, log, async () => {
      await Promise.all([sweeper.stop(), reaper.stop()]);
      await database.close();
    });
  });

program
  .command("orchestrator")
  .description("a simulated build service: real HTTP, made-up builds, for trying out publishing")
  .option("--host <host>", "where to listen", "127.0.0.1")
  .option("--port <port>", "0 takes a free one", portParse, 4100)
  .option("--build-seconds <seconds>", "how long a build takes", secondsParse, 6)
  .addHelpText(
    "after",
    "\nA build's source can ask for a behaviour, e.g. https://git.example/shop?simulate=fail.",
  )
  .action(async (options: { host: string; port: number; buildSeconds: number }) => {
    const config = configRead();
    const log = logOpen(config.logLevel);
    const signal = signalCome();
    const { KNOBS, orchestratorStart } = await import("./orchestrator/simulated.ts");
    const orchestrator = await orchestratorStart({ ...options, appDomain: config.publishing.appDomain });
    const knobs = Object.entries(KNOBS).map(
      ([name, meaning]) => `    ?simulate=${name.padEnd(13)} ${meaning}`,
    );
    process.stderr.write(
      `\n  The simulated build service is at ${orchestrator.url}\n  Start Holdfast with ORCHESTRATOR_URL=${orchestrator.url}\n\n${knobs.join("\n")}\n\n`,
    );
    await untilStopped(signal, log, () => orchestrator.close());
  });

program
  .command("migrate")
  .description("apply pending migrations")
  .option("--status", "only show what is applied and pending; exit code 3 when something is pending")
  .action(async (options: { status?: boolean }) => {
    const config = configRead();
    const { databaseFind } = await import("./server/open.ts");
    const { migrate, migrationStatus } = await import("./database/migrate.ts");
    const { url, embedded } = await databaseFind(config, false);
    try {
      if (options.status === true) {
        const status = await migrationStatus(url);
        for (const name of status.applied) print(`applied  ${name}`);
        for (const name of status.failed) print(`failed   ${name}`);
        for (const name of status.pending) print(`pending  ${name}`);
        if (status.pending.length + status.failed.length > 0) throw new Exit(3, "Migrations are pending.");
      } else {
        const { applied } = await migrate(url);
        for (const name of applied) print(`applied  ${name}`);
        if (applied.length === 0) print("Nothing to do: every migration is applied.");
      }
    } finally {
      await embedded?.stop();
    }
  });

const token = program.command("token").description("create, list and revoke API tokens");
token
  .command("create")
  .description("create a token; its secret is printed this once")
  .argument("<name>", "what the token is for")
  .requiredOption("--role <role>", `one of ${TOKEN_ROLES.join(", ")}`, roleParse)
  .option("--organization <slug>", "organization of a tenant (or meter) token")
  .option("--expires <date>", "when it ends, e.g. 2027-01-31 or 2027-01-31T12:00:00Z", dateParse)
  .action((name: string, options: { role: TokenRole; organization?: string; expires?: Date }) =>
    withDatabase(async ({ db }) => {
      let organizationId: string | null = null;
      if (options.role === "tenant" && options.organization === undefined) {
        throw new Exit(2, "A tenant token needs --organization SLUG.");
      }
      if (options.organization !== undefined) {
        const { organizationBySlug } = await import("./access/organizations.ts");
        const found = await organizationBySlug(db, options.organization);
        if (found === null)
          throw new Exit(1, `There is no organization with the slug "${options.organization}".`);
        organizationId = found.id;
      }
      const { apiTokenCreate } = await import("./access/tokens.ts");
      const created = await apiTokenCreate(db, {
        name,
        role: options.role,
        organizationId,
        expiresAt: options.expires ?? null,
      });
      process.stderr.write(
        `Token ${created.id} (${options.role}, "${name}"). The secret is shown this once:\n`,
      );
      print(created.secret);
    }),
  );
token
  .command("list")
  .description("list all tokens, newest first")
  .option("--json", "as JSON")
  .action((options: { json?: boolean }) =>
    withDatabase(async ({ db }) => {
      const { apiTokensList } = await import("./access/tokens.ts");
      const tokens = await apiTokensList(db);
      if (options.json === true) return print(JSON.stringify(tokens, null, 2));
      for (const row of tokens) {
        const state =
          row.revokedAt !== null
            ? `revoked ${row.revokedAt.toISOString()}`
            : row.expiresAt === null
              ? "valid"
              : `until ${row.expiresAt.toISOString()}`;
        print([row.id, row.role.padEnd(10), state, row.name].join("  "));
      }
    }),
  );
token
  .command("revoke")
  .description("revoke a token at once, in every process")
  .argument("<id>", "the token's id, from `token list`")
  .action((id: string) =>
    withDatabase(async ({ db }) => {
      const { apiTokenRevoke } = await import("./access/tokens.ts");
      const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id);
      const revoked = uuid ? await apiTokenRevoke(db, id) : null;
      if (revoked === null) throw new Exit(1, `There is no token with the id "${id}".`);
      print(`Token ${revoked.id} ("${revoked.name}") was revoked at ${revoked.revokedAt.toISOString()}.`);
    }),
  );

program
  .command("import")
  .description("create or update machines from a CSV file: all rows or none")
  .argument("<file>", "CSV with a header line; - reads standard input")
  .option("--dry-run", "check and report, write nothing")
  .action((file: string, options: { dryRun?: boolean }) =>
    withDatabase(async ({ db }) => {
      const { createReadStream } = await import("node:fs");
      const { machinesImport } = await import("./inventory/importMachines.ts");
      const source = file === "-" ? process.stdin : createReadStream(file);
      const result = await machinesImport(db, source, {
        dryRun: options.dryRun === true,
        onProgress: ({ phase, rows }) => process.stderr.write(`${phase} ${rows} rows\n`),
      });
      if (result.kind === "ImportRefused") {
        for (const problem of result.problems) {
          const where =
            problem.column === null
              ? `line ${problem.line}`
              : `line ${problem.line}, column ${problem.column}`;
          process.stderr.write(`${file}: ${where}: ${problem.reason}\n`);
        }
        throw new Exit(
          4,
          `Nothing was imported: the file has the problems listed above (${result.rows} rows read).`,
        );
      }
      const { created, updated, unchanged, sitesCreated, statusKept } = result;
      print(
        `${result.dryRun ? "Would import" : "Imported"}: ${created} created, ${updated} updated, ${unchanged} unchanged` +
          (sitesCreated.length > 0 ? `; new sites: ${sitesCreated.join(", ")}` : "") +
          (statusKept > 0
            ? `; ${statusKept} existing machines keep a status that differs from the file's`
            : "") +
          ".",
      );
    }),
  );

try {
  const [name] = process.argv.slice(2);
  // With a default command, commander would take a misspelt name for that command's argument.
  if (
    name !== undefined &&
    !name.startsWith("-") &&
    name !== "help" &&
    !program.commands.some((one) => one.name() === name)
  ) {
    throw new Exit(2, `There is no command "${name}". See holdfast --help.`);
  }
  await program.parseAsync();
} catch (error) {
  process.exitCode = explain(error);
}

/** Runs a command on the configured database, beside a server that may be using it. */
async function withDatabase(command: (database: Database) => Promise<void>): Promise<void> {
  const config = configRead();
  const signal = signalCome();
  const { databaseReady } = await import("./server/open.ts");
  const database = await databaseReady(config, logOpen("warn"), false);
  try {
    await Promise.race([
      command(database),
      signal.then((name) => {
        throw new Exit(130, `Stopped by ${name}.`);
      }),
    ]);
  } finally {
    await database.close();
  }
}

/**
 * Listens for SIGTERM and SIGINT from now on, so that nothing which is started meanwhile is left
 * behind. A second signal, after more than a second, ends the process at once.
 */
function signalCome(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let seenAt: number | null = null;
    for (const name of ["SIGTERM", "SIGINT"] as const) {
      process.on(name, () => {
        if (seenAt !== null && performance.now() - seenAt > ONE_SIGNAL_MS) process.exit(1);
        seenAt ??= performance.now();
        resolve(name);
      });
    }
  });
}

/** Waits for a signal, then stops; gives up after half a minute, with exit code 1. */
async function untilStopped(
  signal: Promise<NodeJS.Signals>,
  log: Log,
  stop: () => Promise<void>,
): Promise<void> {
  log.info({ signal: await signal }, "draining");
  const limit = setTimeout(() => {
    log.error("draining takes too long; whatever is left is cut off");
    process.exit(1);
  }, DRAIN_LIMIT_MS);
  await stop();
  clearTimeout(limit);
  log.info("stopped");
}

function explain(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (error instanceof Exit) {
    process.stderr.write(`${error.message}\n`);
    return error.code;
  }
  const known =
    error instanceof ConfigError ||
    error instanceof Refused ||
    error instanceof InvalidInput ||
    (error instanceof Error && "code" in error);
  if (error instanceof Error && "code" in error && (error.code === "EADDRINUSE" || error.code === "EACCES")) {
    process.stderr.write("Cannot listen there; choose another PORT (or HOST):\n");
  }
  process.stderr.write(`${known ? (error as Error).message : ((error as Error).stack ?? String(error))}\n`);
  return error instanceof ConfigError ? 2 : 1;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function roleParse(value: string): TokenRole {
  const role = TOKEN_ROLES.find((known) => known === value.toLowerCase());
  if (role === undefined) throw new InvalidArgumentError(`must be one of ${TOKEN_ROLES.join(", ")}`);
  return role;
}

function portParse(value: string): number {
  const port = Number(value);
  if (!/^\d{1,5}$/.test(value) || port > 65_535) throw new InvalidArgumentError("must be 0 to 65535");
  return port;
}

function secondsParse(value: string): number {
  const seconds = Number(value);
  if (!/^\d{1,6}(\.\d{1,3})?$/.test(value) || seconds <= 0) {
    throw new InvalidArgumentError("must be a number of seconds above 0");
  }
  return seconds;
}

function dateParse(value: string): Date {
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) throw new InvalidArgumentError("is not a date");
  return date;
}
