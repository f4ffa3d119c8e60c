// How the questions about a site with many racks are answered: their plans, as the database reports them,
// and how many statements there are. What is wanted: an index for each rack, and no statement a rack.
import pg from "pg";
import { databaseOpen } from "../src/database/client.ts";
import { rackGaps, rackOccupants, rackSpaces, racksList } from "../src/racks/queries/racks.ts";

const RACKS = 500;
const UNITS = 42;
const PLACED = 40;
const HISTORY = 9;
const SITE = "RACKS";

/** Fills a site with 500 racks, 20,000 placements and their history; once. */
async function racksFill(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query("BEGIN");
    // 20,000 promotions would take their time; the rows are what those would have left.
    await client.query("SET LOCAL session_replication_role = replica");
    await client.query("INSERT INTO site (code, name) VALUES ($1, $1)", [SITE]);
    await client.query(
      `INSERT INTO rack (site_id, name, height_units, power_budget_watts)
       SELECT s.id, 'R' || lpad(n::text, 4, '0'), $2, 10000 FROM site s, generate_series(1, $3) n WHERE s.code = $1`,
      [SITE, UNITS, RACKS],
    );
    await client.query(
      `INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib, power_watts, installed)
       SELECT r.name || '-' || u, r.site_id, 'Bench', 'Rack', 8, 64, 1000, 100, true
       FROM rack r JOIN site s ON s.id = r.site_id, generate_series(1, $2) u WHERE s.code = $1`,
      [SITE, PLACED],
    );
    await client.query(
      `INSERT INTO rack_reservation (rack_id, bottom_unit, height_units, face, depth, power_watts, purpose, idempotency_key,
                                     request, state, expires_at, settled_at, machine_id)
       SELECT r.id, u, 1, 'front', 'full', 100, 'bench', m.asset_tag, '{}', 'promoted', now(), now(), m.id
       FROM rack r JOIN site s ON s.id = r.site_id CROSS JOIN generate_series(1, $2) u
       JOIN machine m ON m.asset_tag = r.name || '-' || u WHERE s.code = $1`,
      [SITE, PLACED],
    );
    // What stood there before, and was taken out: nine times as much as stands there now.
    await client.query(
      `INSERT INTO rack_reservation (rack_id, bottom_unit, height_units, face, depth, power_watts, purpose, idempotency_key,
                                     request, state, expires_at, settled_at, machine_id, removed_at)
       SELECT rack_id, bottom_unit, height_units, face, depth, power_watts, purpose, idempotency_key || '-' || n, request, state,
              expires_at, settled_at, machine_id, settled_at
       FROM rack_reservation, generate_series(1, $1) n`,
      [HISTORY],
    );
    await client.query("COMMIT");
    await client.query("VACUUM ANALYZE");
  } finally {
    await client.end();
  }
}

/** The plans of the rack questions on a site of 500 racks and 20,000 placements, as text. */
export async function racksMeasure(url: string): Promise<string> {
  await racksFill(url);
  const plans: string[] = [];
  // The database tells the plan of whatever is asked, and of what functions ask in turn.
  const told = new URL(url);
  const settings = {
    session_preload_libraries: "auto_explain",
    client_min_messages: "log",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
  };
  told.searchParams.set(
    "options",
    Object.entries(settings)
      .map(([name, value]) => `-c ${name}=${value}`)
      .join(" "),
  );
  const database = databaseOpen(told.href, { poolSize: 1, namedStatements: false, onError: () => undefined });
  database.pool.on("connect", (client) => {
    client.on("notice", ({ message }) => {
      // Not what reads no table: the constant that Prisma asks for, and functions of their arguments.
      if (message !== undefined && /Query Text:[\s\S]*Scan/.test(message)) plans.push(message);
    });
  });
  try {
    const racks = await racksList(database.db, SITE);
    const ids = racks.map((rack) => rack.id);
    const wish = { heightUnits: 2, face: "front", depth: "full", powerWatts: 100 } as const;
    const occupants = await rackOccupants(database.db, ids);
    const gaps = await rackGaps(database.db, ids, "front", "full");
    const spaces = await rackSpaces(database.db, SITE, wish);
    return [
      `${racks.length} racks, ${occupants.length} placements, ${gaps.length} gaps, ${spaces.length} racks with room for two units: ${plans.length} statements`,
      ...plans.map(planOnly),
    ].join("\n\n");
  } finally {
    await database.close();
  }
}

/** The plan without the statement's text and its hundreds of ids. */
function planOnly(message: string): string {
  const [text = "", ...lines] = message.split("\n").filter((line) => line.trim() !== "");
  const at = lines.findIndex((line) => /\((cost|actual)/.test(line));
  const label = /\/\* (\w+) \*\//.exec(message)?.[1] ?? /FROM (\w+)/.exec(message)?.[1] ?? text;
  return [label, ...lines.slice(Math.max(at, 0)).map((line) => line.slice(0, 160))].join("\n");
}
