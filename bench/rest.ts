// The yardstick: the same reservation as a hand-written REST service, with node:http and pg and
// nothing between them. POST /reservations with a bearer token; one named statement a step; the locks,
// their order and the checks of the migration reserve_machine.
//
// Left out, which makes it faster and never slower: cool-downs, orders for any site, maker or model,
// taking over overdue holds, counting what the walk passed over, and the reasons of a refusal.
//
// With `--mode function` it calls reserve_machine() in one statement instead, as the product does.
// Environment: DATABASE_URL, POOL_SIZE. Prints its address when it listens.
import { createHash, randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { parseArgs } from "node:util";
import pg from "pg";
import { YARDSTICK_SETTINGS } from "./dataset.ts";

const { values: flags } = parseArgs({ options: { mode: { type: "string", default: "steps" } } });
const HOLD_SECONDS = 900;
const HOLD_LIMIT = 100_000;
const ATTEMPTS = 5;

const pool = new pg.Pool({
  connectionString: process.env["DATABASE_URL"],
  max: Number(process.env["POOL_SIZE"] ?? 10),
  application_name: `holdfast bench rest ${flags.mode}`,
  lock_timeout: 3000,
  options: YARDSTICK_SETTINGS,
});
pool.on("error", () => undefined);

interface Order {
  readonly organizationId: string;
  readonly orderReference: string;
  readonly idempotencyKey: string;
  readonly requirements: {
    readonly siteCode: string;
    readonly minCpuCores: number;
    readonly minMemoryGib: number;
    readonly minStorageGib: number;
    readonly labels?: readonly string[];
  };
}

interface Choice {
  readonly rank: number;
  readonly assetTag: string;
  readonly siteCode: string;
  readonly model: string;
  readonly cpuCores: number;
  readonly memoryGib: number;
  readonly storageGib: number;
  readonly labels: readonly string[];
  readonly explanation: string;
}

type Answer =
  | {
      readonly kind: "MachineReserved" | "AlreadyReserved";
      readonly reservation: {
        readonly id: string;
        readonly state: string;
        readonly orderReference: string;
        readonly heldAt: string;
        readonly expiresAt: string;
        readonly choice: Choice;
      };
    }
  | {
      readonly kind:
        | "SomeoneWasFaster"
        | "NothingAvailable"
        | "HoldLimitReached"
        | "ModuleDisabled"
        | "UnknownOrganization"
        | "Refused";
    };

const TOKEN = `
  SELECT role, organization_id FROM api_token
  WHERE secret_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp())`;

const ORGANIZATION = `
  SELECT coalesce(hold_limit, $2::integer) AS hold_limit FROM organization WHERE id = $1 FOR NO KEY UPDATE`;

const STATE = `
  SELECT (SELECT id FROM reservation WHERE organization_id = $1 AND idempotency_key = $2) AS found,
         coalesce((SELECT enabled FROM feature_override WHERE organization_id = $1 AND module = 'datacenter'),
                  (SELECT enabled FROM rollout_switch WHERE module = 'datacenter')) AS enabled,
         (SELECT count(*)::integer FROM reservation
          WHERE organization_id = $1 AND settled_at IS NULL AND expires_at > clock_timestamp()) AS held,
         (SELECT id FROM site WHERE code = $3) AS site_id`;

// The best group of equal fit, entered at $6 and wrapped; then the groups after it. The second half
// runs only when the first finds nothing, and each locks one row: the first that nobody else has.
const CANDIDATE = `
  WITH best AS (
    SELECT cpu_cores, memory_gib, storage_gib FROM machine
    WHERE status = 'ready' AND occupancy = 'free' AND site_id = $1
      AND cpu_cores >= $2 AND memory_gib >= $3 AND storage_gib >= $4 AND labels @> $5::text[]
    ORDER BY cpu_cores, memory_gib, storage_gib, id LIMIT 1
  )
  SELECT c.id, c.asset_tag, c.manufacturer, c.model, c.cpu_cores, c.memory_gib, c.storage_gib, c.labels
  FROM best CROSS JOIN LATERAL (
    SELECT * FROM (SELECT m.* FROM machine m
     WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.site_id = $1 AND m.cpu_cores = best.cpu_cores
       AND m.memory_gib = best.memory_gib AND m.storage_gib = best.storage_gib AND m.id > $6
       AND m.labels @> $5::text[]
     ORDER BY m.id LIMIT 1 FOR UPDATE SKIP LOCKED) in_group
    UNION ALL
    SELECT * FROM (SELECT m.* FROM machine m
     WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.site_id = $1
       AND (m.cpu_cores, m.memory_gib, m.storage_gib) >= (best.cpu_cores, best.memory_gib, best.storage_gib)
       AND m.memory_gib >= $3 AND m.storage_gib >= $4 AND m.labels @> $5::text[]
     ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1 FOR UPDATE SKIP LOCKED) after_it
  ) c LIMIT 1`;

const INSERT = `
  INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements,
                           held_at, hold_seconds, expires_at, choice)
  SELECT $1::uuid, $2::uuid, $3::text, $4::text, $5::jsonb, now, $6::integer,
         now + make_interval(secs => $6::integer), $7::jsonb
  FROM clock_timestamp() AS now
  RETURNING id, state, held_at, expires_at`;

const FOUND = "SELECT id, state, order_reference, held_at, expires_at, choice FROM reservation WHERE id = $1";

const FREE = `
  SELECT EXISTS (SELECT FROM machine WHERE status = 'ready' AND occupancy = 'free' AND site_id = $1
    AND cpu_cores >= $2 AND memory_gib >= $3 AND storage_gib >= $4 AND labels @> $5::text[]) AS free`;

const FUNCTION = "SELECT outcome, reservation FROM reserve_machine($1, $2, $3, $4, $5, $6, 0)";

interface MachineRow {
  readonly id: string;
  readonly asset_tag: string;
  readonly manufacturer: string;
  readonly model: string;
  readonly cpu_cores: number;
  readonly memory_gib: number;
  readonly storage_gib: number;
  readonly labels: string[];
}

interface ReservationRow {
  readonly id: string;
  readonly state: string;
  readonly order_reference: string;
  readonly held_at: Date;
  readonly expires_at: Date;
  readonly choice: Choice;
}

async function first<Row extends pg.QueryResultRow>(
  on: pg.Pool | pg.PoolClient,
  name: string,
  text: string,
  values: unknown[],
): Promise<Row | undefined> {
  return (await on.query<Row>({ name, text, values })).rows[0];
}

/** Every step is a statement of its own, and every answer is waited for. */
async function reserveInSteps(order: Order): Promise<Answer> {
  const client = await pool.connect();
  let broken = false;
  try {
    await client.query("BEGIN");
    const answer = await reserveInTx(client, order);
    await client.query(answer.kind === "MachineReserved" ? "COMMIT" : "ROLLBACK");
    return answer;
  } catch (error) {
    await client.query("ROLLBACK").catch(() => {
      broken = true;
    });
    throw error;
  } finally {
    client.release(broken);
  }
}

async function reserveInTx(client: pg.PoolClient, order: Order): Promise<Answer> {
  const { organizationId, idempotencyKey, orderReference, requirements: wanted } = order;
  const organization = await first<{ hold_limit: number }>(client, "organization", ORGANIZATION, [
    organizationId,
    HOLD_LIMIT,
  ]);
  if (organization === undefined) return { kind: "UnknownOrganization" };
  const state = await first<{ found: string | null; enabled: boolean; held: number; site_id: string | null }>(
    client,
    "state",
    STATE,
    [organizationId, idempotencyKey, wanted.siteCode],
  );
  if (state === undefined) throw new Error("no state");
  if (state.found !== null) return already(client, state.found);
  if (!state.enabled) return { kind: "ModuleDisabled" };
  if (state.held >= organization.hold_limit) return { kind: "HoldLimitReached" };
  if (state.site_id === null) return { kind: "NothingAvailable" };

  const needs = [
    state.site_id,
    wanted.minCpuCores,
    wanted.minMemoryGib,
    wanted.minStorageGib,
    wanted.labels ?? [],
  ];
  const start = startOf(organizationId, idempotencyKey);
  const requirements = JSON.stringify(canonical(wanted));
  for (let lost = 0; lost < ATTEMPTS; lost++) {
    await client.query("SAVEPOINT attempt");
    const machine = await first<MachineRow>(client, "candidate", CANDIDATE, [...needs, start]);
    if (machine === undefined) break;
    const choice = chosen(machine, wanted, lost);
    try {
      const row = await first<Omit<ReservationRow, "choice" | "order_reference">>(client, "insert", INSERT, [
        organizationId,
        machine.id,
        orderReference,
        idempotencyKey,
        requirements,
        HOLD_SECONDS,
        JSON.stringify(choice),
      ]);
      if (row === undefined) throw new Error("nothing was inserted");
      await client.query("RELEASE SAVEPOINT attempt");
      return shown("MachineReserved", { ...row, order_reference: orderReference, choice });
    } catch (error) {
      const { constraint } = error as pg.DatabaseError;
      if (
        constraint !== "reservation_one_hold_per_machine" &&
        constraint !== "machine_never_held_and_bound" &&
        constraint !== "reservation_idempotency_key"
      ) {
        throw error;
      }
      await client.query("ROLLBACK TO SAVEPOINT attempt");
      if (constraint === "reservation_idempotency_key") {
        const again = await first<{ found: string }>(client, "state", STATE, [
          organizationId,
          idempotencyKey,
          wanted.siteCode,
        ]);
        if (again !== undefined) return already(client, again.found);
      }
    }
  }
  const left = await first<{ free: boolean }>(client, "free", FREE, needs);
  return { kind: left?.free === true ? "SomeoneWasFaster" : "NothingAvailable" };
}

async function already(on: pg.PoolClient, id: string): Promise<Answer> {
  const row = await first<ReservationRow>(on, "found", FOUND, [id]);
  if (row === undefined) throw new Error("a reservation that was found is gone");
  return shown("AlreadyReserved", row);
}

async function reserveInFunction(order: Order): Promise<Answer> {
  const row = await first<{
    outcome: string;
    reservation:
      | (Omit<ReservationRow, "held_at" | "expires_at"> & { held_at: string; expires_at: string })
      | null;
  }>(pool, "function", FUNCTION, [
    order.organizationId,
    order.orderReference,
    order.idempotencyKey,
    JSON.stringify(canonical(order.requirements)),
    HOLD_SECONDS,
    HOLD_LIMIT,
  ]);
  if (row?.outcome === "nothing_won") return { kind: "SomeoneWasFaster" };
  if (row?.outcome !== "reserved" || row.reservation === null) return { kind: "Refused" };
  const { held_at, expires_at, ...rest } = row.reservation;
  return shown("MachineReserved", { ...rest, held_at: new Date(held_at), expires_at: new Date(expires_at) });
}

function shown(kind: "MachineReserved" | "AlreadyReserved", row: ReservationRow): Answer {
  const { rank, assetTag, siteCode, model, cpuCores, memoryGib, storageGib, labels, explanation } =
    row.choice;
  return {
    kind,
    reservation: {
      id: row.id,
      state: row.state,
      orderReference: row.order_reference,
      heldAt: row.held_at.toISOString(),
      expiresAt: row.expires_at.toISOString(),
      choice: { rank, assetTag, siteCode, model, cpuCores, memoryGib, storageGib, labels, explanation },
    },
  };
}

function chosen(machine: MachineRow, wanted: Order["requirements"], lostRaces: number) {
  return {
    rank: lostRaces + 1,
    skipped: 0,
    lostRaces,
    assetTag: machine.asset_tag,
    siteCode: wanted.siteCode,
    manufacturer: machine.manufacturer,
    model: machine.model,
    cpuCores: machine.cpu_cores,
    memoryGib: machine.memory_gib,
    storageGib: machine.storage_gib,
    labels: machine.labels,
    explanation: `The closest fit that could be had: ${machine.manufacturer} ${machine.model} at ${wanted.siteCode} with ${machine.cpu_cores} cores (${wanted.minCpuCores} asked), ${machine.memory_gib} GiB of memory (${wanted.minMemoryGib} asked) and ${machine.storage_gib} GiB of storage (${wanted.minStorageGib} asked).`,
  };
}

function canonical(wanted: Order["requirements"]): Record<string, unknown> {
  return {
    site_code: wanted.siteCode,
    min_cpu_cores: wanted.minCpuCores,
    min_memory_gib: wanted.minMemoryGib,
    min_storage_gib: wanted.minStorageGib,
    ...(wanted.labels === undefined ? {} : { labels: wanted.labels }),
  };
}

/** Where an order enters a group of equal fit: a uuid drawn from its key. */
function startOf(organizationId: string, key: string): string {
  return createHash("md5").update(organizationId).update(key).digest("hex");
}

const reserve = flags.mode === "function" ? reserveInFunction : reserveInSteps;

async function handle(req: IncomingMessage, res: ServerResponse): Promise<void> {
  if (req.method !== "POST" || req.url !== "/reservations") return respond(res, 404, { kind: "NotFound" });
  const secret = /^Bearer +(\S{1,8000}) *$/i.exec(req.headers.authorization ?? "")?.[1];
  if (secret === undefined) return respond(res, 401, { kind: "Unauthenticated" });
  const body = await bodyRead(req);
  const viewer = await first<{ role: string; organization_id: string | null }>(pool, "token", TOKEN, [
    createHash("sha256").update(secret).digest(),
  ]);
  if (viewer === undefined) return respond(res, 401, { kind: "Unauthenticated" });
  const order = orderParse(body);
  if (order === null) return respond(res, 400, { kind: "BadRequest" });
  const own = viewer.role !== "tenant" || viewer.organization_id === order.organizationId;
  if (viewer.role === "meter" || !own) return respond(res, 403, { kind: "Forbidden" });
  const answer = await reserve(order);
  respond(res, answer.kind === "MachineReserved" ? 201 : 409, answer);
}

function bodyRead(req: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    req.on("data", (chunk: Buffer) => {
      size += chunk.length;
      if (size > 1_000_000) reject(new Error("the body is too large"));
      else chunks.push(chunk);
    });
    req.on("end", () => resolve(Buffer.concat(chunks).toString("utf8")));
    req.on("error", reject);
  });
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

function orderParse(body: string): Order | null {
  try {
    const order = JSON.parse(body) as Order;
    const wanted = order.requirements;
    const valid =
      UUID.test(order.organizationId) &&
      text(order.orderReference) &&
      text(order.idempotencyKey) &&
      text(wanted.siteCode) &&
      Number.isInteger(wanted.minCpuCores) &&
      Number.isInteger(wanted.minMemoryGib) &&
      Number.isInteger(wanted.minStorageGib) &&
      (wanted.labels === undefined || (Array.isArray(wanted.labels) && wanted.labels.every(text)));
    return valid ? order : null;
  } catch {
    return null;
  }
}

function text(value: unknown): boolean {
  return typeof value === "string" && value.length >= 1 && value.length <= 200;
}

function respond(res: ServerResponse, status: number, answer: object): void {
  const body = JSON.stringify(answer);
  res
    .writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(body) })
    .end(body);
}

const server = createServer((req, res) => {
  res.setHeader("x-request-id", randomUUID());
  handle(req, res).catch((error: unknown) => {
    process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
    respond(res, 500, { kind: "InternalServerError" });
  });
});
server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`listening at http://127.0.0.1:${(server.address() as AddressInfo).port}\n`);
});
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    server.close(() => void pool.end());
    server.closeAllConnections();
  });
}
