// The yardstick: the same reservation written by hand with node:http and pg, named statements, one a
// step, against the same database with the same rules in it. What a good engineer would write who
// needs nothing but this one endpoint. `REST_FUNCTION=1` calls the product's SQL function instead.
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage } from "node:http";
import pg from "pg";

const pool = new pg.Pool({
  connectionString: process.env["DATABASE_URL"],
  max: Number(process.env["DATABASE_POOL_SIZE"] ?? 10),
});
const oneStatement = process.env["REST_FUNCTION"] === "1";

interface Order {
  organizationId: string;
  orderReference: string;
  idempotencyKey: string;
  requirements: { siteCode: string; minCpuCores: number; minMemoryGib: number };
}

interface Answer {
  status: number;
  body: object;
}

const named = (client: pg.Pool | pg.PoolClient, name: string, text: string, values: unknown[]) =>
  client.query({ name, text, values });

async function authenticated(authorization: string | undefined): Promise<boolean> {
  const secret = createHash("sha256")
    .update(authorization?.slice(7) ?? "")
    .digest();
  const { rows } = await named(
    pool,
    "token",
    `SELECT role FROM api_token WHERE secret_sha256 = $1 AND revoked_at IS NULL
     AND (expires_at IS NULL OR expires_at > statement_timestamp())`,
    [secret],
  );
  return ["operator", "storefront"].includes(rows[0]?.role);
}

async function reserve(order: Order): Promise<Answer> {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const answer = await reserveIn(client, order);
    await client.query("COMMIT");
    return answer;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  } finally {
    client.release();
  }
}

async function reserveIn(client: pg.PoolClient, order: Order): Promise<Answer> {
  const { requirements: wanted } = order;
  const organization = await named(
    client,
    "organization",
    "SELECT hold_limit FROM organization WHERE id = $1 FOR NO KEY UPDATE",
    [order.organizationId],
  );
  if (organization.rowCount === 0) return { status: 404, body: { error: "unknown organization" } };
  const checks = await named(
    client,
    "checks",
    `SELECT (SELECT id FROM reservation WHERE organization_id = $1 AND idempotency_key = $2) AS used,
            module_enabled($1, 'datacenter') AS open,
            (SELECT count(*)::int FROM reservation WHERE organization_id = $1 AND state = 'held' AND expires_at > clock_timestamp()) AS held,
            (SELECT id FROM site WHERE code = $3) AS site_id`,
    [order.organizationId, order.idempotencyKey, wanted.siteCode],
  );
  const { used, open, held, site_id: site } = checks.rows[0];
  if (used !== null) return { status: 200, body: { alreadyReserved: used } };
  if (!open) return { status: 403, body: { error: "closed" } };
  if (held >= (organization.rows[0].hold_limit ?? 100_000)) return { status: 429, body: { error: "limit" } };
  const group = await named(
    client,
    "group",
    `SELECT cpu_cores, memory_gib, storage_gib FROM machine
     WHERE status = 'ready' AND occupancy = 'free' AND site_id = $1 AND cpu_cores >= $2 AND memory_gib >= $3
     ORDER BY cpu_cores, memory_gib, storage_gib, id LIMIT 1`,
    [site, wanted.minCpuCores, wanted.minMemoryGib],
  );
  if (group.rowCount === 0) return { status: 409, body: { error: "nothing available" } };
  const { cpu_cores: cores, memory_gib: memory, storage_gib: storage } = group.rows[0];
  const start = createHash("md5")
    .update(order.organizationId + order.idempotencyKey)
    .digest("hex");
  await client.query("SAVEPOINT attempt");
  for (const half of [">=", "<"] as const) {
    const machine = await named(
      client,
      `machine ${half}`,
      `SELECT id, asset_tag FROM machine WHERE status = 'ready' AND occupancy = 'free' AND site_id = $1 AND cpu_cores = $2
         AND memory_gib = $3 AND storage_gib = $4 AND id ${half} $5::uuid
       ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`,
      [site, cores, memory, storage, start],
    );
    if (machine.rowCount === 0) continue;
    const choice = { assetTag: machine.rows[0].asset_tag, cpuCores: cores, memoryGib: memory };
    const made = await named(
      client,
      "insert",
      `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
       VALUES ($1, $2, $3, $4, $5, clock_timestamp(), 900, clock_timestamp() + interval '900 seconds', $6)
       RETURNING id, state, expires_at`,
      [order.organizationId, machine.rows[0].id, order.orderReference, order.idempotencyKey, wanted, choice],
    );
    await client.query("RELEASE SAVEPOINT attempt");
    const { id, state, expires_at: expiresAt } = made.rows[0];
    return {
      status: 201,
      body: { reservation: { id, state, expiresAt, choice: { assetTag: choice.assetTag } } },
    };
  }
  return { status: 409, body: { error: "someone was faster" } };
}

async function reserveByFunction(order: Order): Promise<Answer> {
  const { siteCode, minCpuCores, minMemoryGib } = order.requirements;
  const { rows } = await named(
    pool,
    "function",
    "SELECT outcome, reservation FROM reserve_machine($1, $2, $3, $4, 900, 100000, 0)",
    [
      order.organizationId,
      order.orderReference,
      order.idempotencyKey,
      { site_code: siteCode, min_cpu_cores: minCpuCores, min_memory_gib: minMemoryGib },
    ],
  );
  if (rows[0].outcome !== "reserved") return { status: 409, body: { error: rows[0].outcome } };
  const { id, state, expires_at: expiresAt, choice } = rows[0].reservation;
  return {
    status: 201,
    body: { reservation: { id, state, expiresAt, choice: { assetTag: choice.assetTag } } },
  };
}

async function bodyOf(request: IncomingMessage): Promise<Order> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString("utf8")) as Order;
}

const server = createServer(async (request, response) => {
  try {
    const order = await bodyOf(request);
    const answer = !(await authenticated(request.headers.authorization))
      ? { status: 401, body: { error: "unauthenticated" } }
      : await (oneStatement ? reserveByFunction(order) : reserve(order));
    response
      .writeHead(answer.status, { "content-type": "application/json" })
      .end(JSON.stringify(answer.body));
  } catch (error) {
    response
      .writeHead(500, { "content-type": "application/json" })
      .end(JSON.stringify({ error: String(error) }));
  }
});
server.listen(Number(process.env["PORT"]), "127.0.0.1");
process.once("SIGTERM", () => {
  server.close();
  server.closeIdleConnections();
  void pool.end();
});
