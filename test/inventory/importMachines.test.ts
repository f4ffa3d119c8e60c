import { createReadStream, existsSync } from "node:fs";
import fc from "fast-check";
import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Database, databaseOpen } from "../../src/database/client.ts";
import {
  type ImportProblem,
  type ImportProgress,
  type ImportResult,
  machinesImport,
} from "../../src/inventory/importMachines.ts";
import { MACHINE_STATUSES } from "../../src/inventory/rows.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { breaches, hold, machine } from "../support/world.ts";

/** Not part of the repository: a list of real machines that stands beside it where there is one. */
const REAL_FILE = new URL("../../../shared/inventory/machines.csv", import.meta.url);
const ALL =
  "asset_tag,site,location,manufacturer,model,cpu_cores,memory_gib,storage_gib,labels,status,monthly_price_eur";
const REQUIRED = "asset_tag,site,manufacturer,model,cpu_cores,memory_gib,storage_gib";

const database = useTestDatabase();
let one: Database;
let two: Database;
let sessions: pg.Client[] = [];

beforeAll(() => {
  const options = { poolSize: 4, namedStatements: true, onError: () => undefined };
  one = databaseOpen(database().url, options);
  two = databaseOpen(database().url, options);
});
afterAll(async () => {
  await one.close();
  await two.close();
});
beforeEach(() =>
  database().pool.query("TRUNCATE site, machine, reservation, service_binding, rack, rack_reservation"),
);
afterEach(async () => {
  for (const session of sessions) await session.end();
  sessions = [];
  expect(await breaches(database().pool)).toEqual([]);
});

async function session(): Promise<pg.Client> {
  const client = await database().connect();
  sessions.push(client);
  return client;
}

/** A source in pieces of any kind, as a stream would deliver them. */
async function* pieces(...parts: (string | Buffer)[]): AsyncGenerator<string | Buffer> {
  yield* parts;
}

function importFile(
  content: string | Buffer,
  options: { dryRun?: boolean; through?: Database } = {},
): Promise<ImportResult> {
  return machinesImport((options.through ?? one).db, pieces(content), { dryRun: options.dryRun ?? false });
}

/** A whole file under all columns. */
const file = (...rows: string[]) => `${[ALL, ...rows].join("\n")}\n`;

async function problemsOf(content: string | Buffer): Promise<readonly ImportProblem[]> {
  const result = await importFile(content);
  if (result.kind !== "ImportRefused") throw new Error(`went in: ${JSON.stringify(result)}`);
  return result.problems;
}

interface Stored {
  asset_tag: string;
  site: string;
  location: string | null;
  manufacturer: string;
  model: string;
  cpu_cores: number;
  memory_gib: number;
  storage_gib: number;
  labels: string[];
  status: string;
  monthly_price_cents: number | null;
}

async function stored(): Promise<Stored[]> {
  const { rows } = await database().pool.query<Stored>(
    `SELECT m.asset_tag, s.code AS site, m.location, m.manufacturer, m.model, m.cpu_cores, m.memory_gib,
            m.storage_gib, m.labels, m.status, m.monthly_price_cents
     FROM machine m JOIN site s ON s.id = m.site_id ORDER BY m.asset_tag COLLATE "C"`,
  );
  return rows;
}

async function counts(): Promise<{ machines: number; sites: number }> {
  const { rows } = await database().pool.query<{ machines: number; sites: number }>(
    "SELECT (SELECT count(*) FROM machine)::integer AS machines, (SELECT count(*) FROM site)::integer AS sites",
  );
  return rows[0] as { machines: number; sites: number };
}

const imported = (counted: Partial<Extract<ImportResult, { kind: "MachinesImported" }>>) => ({
  kind: "MachinesImported",
  created: 0,
  updated: 0,
  unchanged: 0,
  sitesCreated: [],
  statusKept: 0,
  dryRun: false,
  ...counted,
});

describe("a good file", () => {
  test("the real list: 1,040 machines are created, and a second time nothing changes", async (context) => {
    context.skip(!existsSync(REAL_FILE), "the real list is not on this machine");
    const go = () => machinesImport(one.db, createReadStream(REAL_FILE), { dryRun: false });
    expect(await go()).toEqual(imported({ created: 1040, sitesCreated: ["FSN1", "HEL1", "NBG1"] }));
    expect(await counts()).toEqual({ machines: 1040, sites: 3 });
    expect(await go()).toEqual(imported({ unchanged: 1040 }));
    expect(await counts()).toEqual({ machines: 1040, sites: 3 });
  });

  test("every column is stored, in the units of the table", async () => {
    await importFile(
      file("A1,FRA,Row 3,Dell,R450,8,64,1000,nvme; ecc;;nvme,READY,49.9", "A2,AMS,,HP,X,1,1,0,,,"),
    );
    expect(await stored()).toEqual([
      {
        asset_tag: "A1",
        site: "FRA",
        location: "Row 3",
        manufacturer: "Dell",
        model: "R450",
        cpu_cores: 8,
        memory_gib: 64,
        storage_gib: 1000,
        labels: ["nvme", "ecc"],
        status: "ready",
        monthly_price_cents: 4990,
      },
      {
        asset_tag: "A2",
        site: "AMS",
        location: null,
        manufacturer: "HP",
        model: "X",
        cpu_cores: 1,
        memory_gib: 1,
        storage_gib: 0,
        labels: [],
        status: "planned",
        monthly_price_cents: null,
      },
    ]);
    const { rows } = await database().pool.query("SELECT code, name FROM site ORDER BY code");
    expect(rows).toEqual([
      { code: "AMS", name: "AMS" },
      { code: "FRA", name: "FRA" },
    ]);
  });

  test.each([
    ["0", 0],
    ["0.1", 10],
    ["1.15", 115],
    ["8.29", 829],
    ["9999999.99", 999_999_999],
  ])("a price of %s euros is %i cents", async (price, cents) => {
    await importFile(file(`A1,FRA,,Dell,R450,8,64,1000,,,${price}`));
    expect((await stored())[0]?.monthly_price_cents).toBe(cents);
  });

  test("a column that is absent leaves values alone; an empty cell takes them away", async () => {
    await importFile(file("A1,FRA,Row 3,Dell,R450,8,64,1000,nvme,ready,49"));
    expect(await importFile(`${REQUIRED}\nA1,FRA,Dell,R450,8,128,1000\n`)).toEqual(imported({ updated: 1 }));
    const kept = { location: "Row 3", labels: ["nvme"], status: "ready", monthly_price_cents: 4900 };
    expect(await stored()).toMatchObject([{ ...kept, memory_gib: 128 }]);
    // An empty status says nothing about a machine that exists, so that it does not count as different.
    expect(await importFile(file("A1,FRA,,Dell,R450,8,128,1000,,,"))).toEqual(imported({ updated: 1 }));
    expect(await stored()).toMatchObject([
      { location: null, labels: [], status: "ready", monthly_price_cents: null },
    ]);
  });

  test("an existing machine keeps its status, and the result counts that", async () => {
    await importFile(file("A1,FRA,,Dell,R450,8,64,1000,,cleaning,", "A2,FRA,,Dell,R450,8,64,1000,,ready,"));
    expect(
      await importFile(file("A1,FRA,,Dell,R450,8,64,1000,,ready,", "A2,FRA,,Dell,R450,8,64,1000,,Ready,")),
    ).toEqual(imported({ unchanged: 2, statusKept: 1 }));
    expect((await stored()).map((row) => row.status)).toEqual(["cleaning", "ready"]);
  });

  test("created, updated and unchanged rows are counted apart", async () => {
    await importFile(file("A1,FRA,,Dell,R450,8,64,1000,,,", "A2,FRA,,Dell,R450,8,64,1000,,,"));
    expect(
      await importFile(
        file(
          "A1,FRA,,Dell,R450,8,64,1000,,,",
          "A2,AMS,,Dell,R450,8,64,1000,,,",
          "A3,FRA,,Dell,R450,8,64,1000,,,",
        ),
      ),
    ).toEqual(imported({ created: 1, updated: 1, unchanged: 1, sitesCreated: ["AMS"] }));
  });

  test.each([
    ["a byte order mark", `\uFEFF${REQUIRED}\nA1,FRA,Dell,R450,8,64,1000\n`],
    ["carriage returns and line feeds", `${REQUIRED}\r\nA1,FRA,Dell,R450,8,64,1000\r\n`],
    ["carriage returns alone", `${REQUIRED}\rA1,FRA,Dell,R450,8,64,1000\r`],
    ["mixed line ends", `${REQUIRED}\r\n\nA1,FRA,Dell,R450,8,64,1000`],
    [
      "columns in another order",
      "model,asset_tag,site,manufacturer,storage_gib,memory_gib,cpu_cores\nR450,A1,FRA,Dell,1000,64,8\n",
    ],
    [
      "white space around names and values",
      ` ${REQUIRED.replaceAll(",", " , ")}\n A1 , FRA,Dell ,R450, 8,64 ,1000\n`,
    ],
    ["quotes around everything", `${REQUIRED}\n"A1","FRA","Dell","R450","8","64","1000"\n`],
  ])("%s", async (_name, content) => {
    const bytes = Buffer.from(content);
    // Byte by byte, so that no character and no line end comes in one piece.
    const single = Array.from(bytes, (_, at) => bytes.subarray(at, at + 1));
    expect(await machinesImport(one.db, pieces(...single), { dryRun: false })).toMatchObject({ created: 1 });
    expect(await importFile(bytes)).toMatchObject({ unchanged: 1 });
    expect(await stored()).toMatchObject([{ asset_tag: "A1", site: "FRA", model: "R450", cpu_cores: 8 }]);
  });

  test("a header without rows is a file of no machines", async () => {
    expect(await importFile(ALL)).toEqual(imported({}));
  });

  test("progress is told while reading, and before writing", async () => {
    const told: ImportProgress[] = [];
    const rows = Array.from({ length: 12_000 }, (_, at) => `A${at},FRA,Dell,R450,8,64,1000`);
    const result = await machinesImport(one.db, pieces([REQUIRED, ...rows].join("\n")), {
      dryRun: false,
      onProgress: (progress) => told.push(progress),
    });
    expect(result).toEqual(imported({ created: 12_000, sitesCreated: ["FRA"] }));
    expect(told).toEqual([
      { phase: "reading", rows: 10_000 },
      { phase: "reading", rows: 12_000 },
      { phase: "writing", rows: 12_000 },
    ]);
  });
});

describe("problems", () => {
  const row = (change: Record<string, string>) => {
    const good: Record<string, string> = {
      asset_tag: "A9",
      site: "FRA",
      location: "",
      manufacturer: "Dell",
      model: "R450",
      cpu_cores: "8",
      memory_gib: "64",
      storage_gib: "1000",
      labels: "",
      status: "",
      monthly_price_eur: "",
      ...change,
    };
    return ALL.split(",")
      .map((name) => good[name])
      .join(",");
  };

  // One bad cell on line 3, between two good rows.
  test.each([
    ["asset_tag", "", "must not be empty"],
    ["asset_tag", "A".repeat(101), "must have at most 100 characters"],
    ["asset_tag", "A\u0000", "must not contain control characters or broken surrogate pairs"],
    ["site", "  ", "must not be empty"],
    ["site", "F".repeat(51), "must have at most 50 characters"],
    ["location", "L".repeat(201), "must have at most 200 characters"],
    ["manufacturer", "", "must not be empty"],
    ["model", "", "must not be empty"],
    ["cpu_cores", "", "must be a whole number"],
    ["cpu_cores", "8.5", "must be a whole number"],
    ["cpu_cores", "1e3", "must be a whole number"],
    ["cpu_cores", "0", "must be at least 1"],
    ["cpu_cores", "100001", "must be at most 100000"],
    ["memory_gib", "-1", "must be a whole number"],
    ["memory_gib", "0", "must be at least 1"],
    ["memory_gib", "100000001", "must be at most 100000000"],
    ["storage_gib", "1000000001", "must be at most 1000000000"],
    ["storage_gib", "99999999999999999999", "must be a whole number"],
    ["labels", "l".repeat(101), "must have at most 100 characters"],
    ["labels", Array.from({ length: 65 }, (_, at) => `l${at}`).join(";"), "must have at most 64 entries"],
    ["status", "sold", `must be one of ${MACHINE_STATUSES.join(", ")}`],
    ["monthly_price_eur", "1.234", "must be an amount such as 49 or 49.90"],
    ["monthly_price_eur", "-1", "must be an amount such as 49 or 49.90"],
    ["monthly_price_eur", '"1,50"', "must be an amount such as 49 or 49.90"],
  ])("%s: %s", async (column, value, reason) => {
    const content = file(row({ asset_tag: "A1" }), row({ [column]: value }), row({ asset_tag: "A3" }));
    expect(await problemsOf(content)).toEqual([{ line: 3, column, reason }]);
    expect(await counts()).toEqual({ machines: 0, sites: 0 });
  });

  const opening =
    "a quote stands within a value; put the whole value in quotes, and write the quote within it twice";
  const unclosed = "a quote that opens in this row is not closed before the file ends";
  const known = ALL.split(",");
  const inOrder = `known are ${[...REQUIRED.split(","), "location", "labels", "status", "monthly_price_eur", "height_units", "depth", "power_watts"].join(", ")}`;
  test.each<[string, string | Buffer, ImportProblem[]]>([
    [
      "an empty file",
      "",
      [
        {
          line: 1,
          column: null,
          reason: `the file is empty; its first line must name the columns (${REQUIRED.replaceAll(",", ", ")})`,
        },
      ],
    ],
    [
      "a file of blank lines",
      "\uFEFF\r\n\n",
      [
        {
          line: 1,
          column: null,
          reason: `the file is empty; its first line must name the columns (${REQUIRED.replaceAll(",", ", ")})`,
        },
      ],
    ],
    [
      "a missing, an unknown, a nameless and a repeated column",
      `\n${known.slice(1).join(",")},colour,,site\nx\n`,
      [
        { line: 2, column: "asset_tag", reason: "this column is required and missing" },
        { line: 2, column: "colour", reason: `there is no such column; ${inOrder}` },
        { line: 2, column: null, reason: "a column has no name" },
        { line: 2, column: "site", reason: "this column stands twice in the header" },
      ],
    ],
    ["a broken header", `asset"tag,site\nA1,FRA\n`, [{ line: 1, column: null, reason: opening }]],
    [
      "a header that is no UTF-8",
      Buffer.from(`${REQUIRED},gr\xf6\xdfe\n`, "latin1"),
      [
        { line: 1, column: null, reason: "is not valid UTF-8" },
        { line: 1, column: "gr\uFFFD\uFFFDe", reason: `there is no such column; ${inOrder}` },
      ],
    ],
    [
      "too few and too many fields",
      `${REQUIRED}\nA1,FRA\n\nA2,FRA,Dell,R450,8,64,1000,x\n`,
      [
        { line: 2, column: null, reason: "has 2 fields; the header has 7" },
        { line: 4, column: null, reason: "has 8 fields; the header has 7" },
      ],
    ],
    [
      "a tag that stands three times, once in a row with another problem",
      `${REQUIRED}\nA1,FRA,Dell,R450,0,64,1000\nA1,FRA,Dell,R450,8,64,1000\n A1,FRA,Dell,R450,8,64,1000\n`,
      [
        { line: 2, column: "cpu_cores", reason: "must be at least 1" },
        { line: 3, column: "asset_tag", reason: "stands on line 2 already" },
        { line: 4, column: "asset_tag", reason: "stands on line 2 already" },
      ],
    ],
    [
      "several problems of one row",
      `${REQUIRED}\nA1,,Dell,R450,0,x,1000\n`,
      [
        { line: 2, column: "site", reason: "must not be empty" },
        { line: 2, column: "cpu_cores", reason: "must be at least 1" },
        { line: 2, column: "memory_gib", reason: "must be a whole number" },
      ],
    ],
    [
      "lines are counted through quoted values, blank lines and every kind of line end",
      `${REQUIRED}\r\n"A1",FRA,"De\r\n\r\nll","R\n450",8,64,1000\r\n\r\nA2,FRA,"x\r\ny",R450,0,64,1000\nA3,FRA,Dell,R450,0,64,1000\r`,
      [
        { line: 7, column: "cpu_cores", reason: "must be at least 1" },
        { line: 9, column: "cpu_cores", reason: "must be at least 1" },
      ],
    ],
    [
      "quotes within values, and the rows after them",
      `${REQUIRED}\nA1,FRA,De"ll,R450,8,64,1000\nA2,FRA,De"ll"x,R450,8,64,1000\nA3,FRA,Dell,R450,0,64,1000\n`,
      [
        { line: 2, column: "manufacturer", reason: opening },
        { line: 3, column: "manufacturer", reason: opening },
        { line: 4, column: "cpu_cores", reason: "must be at least 1" },
      ],
    ],
    [
      "text after a closing quote",
      `${REQUIRED}\nA1,FRA,"De"ll",R450,8,64,1000\nA2,FRA,Dell,R450,0,64,1000\n`,
      [
        {
          line: 2,
          column: "manufacturer",
          reason:
            "a quoted value goes on after its closing quote, on line 2; a quote within it is written twice",
        },
        { line: 3, column: "cpu_cores", reason: "must be at least 1" },
      ],
    ],
    [
      "a quote that is never closed, and the rows before it",
      `${REQUIRED}\n\nA1,FRA,Dell,R450,0,64,1000\n\n\nA2,FRA,"Dell,R450,8,64,1000\nA3,FRA,Dell,R450,8,64,1000\n`,
      [
        { line: 3, column: "cpu_cores", reason: "must be at least 1" },
        { line: 6, column: "manufacturer", reason: unclosed },
      ],
    ],
    [
      "a row without an end",
      `${REQUIRED}\nA1,FRA,"Dell,${"x\n".repeat(200_000)}`,
      [
        {
          line: 2,
          column: null,
          reason: "this row is longer than 262144 bytes; most likely a quote in it is not closed",
        },
      ],
    ],
    [
      "bytes that are no UTF-8, and the rows around them",
      Buffer.concat([
        Buffer.from(`${REQUIRED}\r\nA1,FRA,Dell,R450,0,64,1000\r\n`),
        Buffer.from("A2,FRA,M\xfcller,R450,0,64,1000\r\n", "latin1"),
        Buffer.from("A3,FRA,Müller,R450,0,64,1000\r\n"),
      ]),
      [
        { line: 2, column: "cpu_cores", reason: "must be at least 1" },
        { line: 3, column: null, reason: "is not valid UTF-8" },
        { line: 4, column: "cpu_cores", reason: "must be at least 1" },
      ],
    ],
  ])("%s", async (_name, content, problems) => {
    expect(await problemsOf(content)).toEqual(problems);
    const bytes = Buffer.from(content as string);
    const halves = pieces(bytes.subarray(0, bytes.length / 2), bytes.subarray(bytes.length / 2));
    expect(await machinesImport(one.db, halves, { dryRun: false })).toMatchObject({ problems });
    expect(await counts()).toEqual({ machines: 0, sites: 0 });
  });

  test("1,000 problems are reported, and how many more there are", async () => {
    const rows = Array.from({ length: 1500 }, (_, at) => `A${at},FRA,Dell,R450,0,64,1000`);
    const problems = await problemsOf([REQUIRED, ...rows].join("\n"));
    expect(problems).toHaveLength(1001);
    expect(problems.slice(999)).toEqual([
      { line: 1001, column: "cpu_cores", reason: "must be at least 1" },
      { line: 1001, column: null, reason: "and 500 more problems" },
    ]);
  });

  test("a file of more than 200,000 rows is refused where it becomes too long", async () => {
    const rows = Array.from({ length: 200_010 }, (_, at) => `A${at},FRA,Dell,R450,8,64,1000`);
    expect(await importFile([REQUIRED, ...rows].join("\n"))).toMatchObject({
      kind: "ImportRefused",
      problems: [{ line: 200_002, column: null, reason: "the file has more than 200000 rows; split it" }],
    });
    expect(await counts()).toEqual({ machines: 0, sites: 0 });
  });

  test.each([
    ["64 MiB", Buffer.from(`${"x".repeat(200_000)}\n`.repeat(5)), "the file is larger than 64 MiB; split it"],
    ["2,000,000 lines", Buffer.alloc(100_000, "\n"), "the file has more than 2000000 lines; split it"],
  ])("a file of more than %s is refused without reading it to its end", async (_name, chunk, reason) => {
    let closed = false;
    const endless = (async function* () {
      try {
        yield `${REQUIRED}\n`;
        for (;;) yield chunk;
      } finally {
        closed = true;
      }
    })();
    const result = await machinesImport(one.db, endless, { dryRun: false });
    expect(result.kind === "ImportRefused" && result.problems.at(-1)).toMatchObject({ column: null, reason });
    expect(closed).toBe(true);
  });

  test("what the source throws is thrown, and nothing is written", async () => {
    const broken = (async function* () {
      yield `${REQUIRED}\nA1,FRA,Dell,R450,8,64,1000\n`;
      throw new TypeError("the disk is gone");
    })();
    await expect(machinesImport(one.db, broken, { dryRun: false })).rejects.toThrow("the disk is gone");
    expect(await counts()).toEqual({ machines: 0, sites: 0 });
  });
});

describe("machines in use", () => {
  const IDENTITY = "A1,FRA,,Dell,R450,8,64,1000,nvme,ready,";
  const CHANGES: [string, string, string, string][] = [
    ["site", "A1,AMS,,Dell,R450,8,64,1000,,,", "FRA", "AMS"],
    ["manufacturer", "A1,FRA,,HP,R450,8,64,1000,,,", "Dell", "HP"],
    ["model", "A1,FRA,,Dell,R650,8,64,1000,,,", "R450", "R650"],
    ["cpu_cores", "A1,FRA,,Dell,R450,9,64,1000,,,", "8", "9"],
    ["memory_gib", "A1,FRA,,Dell,R450,8,65,1000,,,", "64", "65"],
    ["storage_gib", "A1,FRA,,Dell,R450,8,64,1001,,,", "1000", "1001"],
  ];

  async function inUse(occupancy: "held" | "bound"): Promise<void> {
    const reservation = await hold(database().pool, await machine(database().pool, { assetTag: "A1" }));
    if (occupancy === "bound") {
      await database().pool.query("SELECT reservation_convert($1, NULL, 'svc', false)", [reservation]);
    }
  }

  for (const occupancy of ["held", "bound"] as const) {
    test.each(CHANGES)(`a ${occupancy} machine keeps its %s`, async (column, row, actual, wanted) => {
      await inUse(occupancy);
      const before = await stored();
      // A new machine and a new site beside it, neither of which may stay.
      expect(await problemsOf(file("A0,MUC,,Dell,R450,8,64,1000,,,", row))).toEqual([
        {
          line: 3,
          column,
          reason: `machine A1 is ${occupancy} and keeps its ${column} (${actual}, not ${wanted})`,
        },
      ]);
      expect(await stored()).toEqual(before);
      expect(await counts()).toEqual({ machines: 1, sites: 1 });
    });

    test(`a ${occupancy} machine's place, labels and price may change`, async () => {
      await inUse(occupancy);
      expect(await importFile(file("A1,FRA,Row 9,Dell,R450,8,64,1000,hdd,retired,10"))).toEqual(
        imported({ updated: 1, statusKept: 1 }),
      );
      expect(await stored()).toMatchObject([
        { location: "Row 9", labels: ["hdd"], monthly_price_cents: 1000, status: "ready" },
      ]);
    });
  }

  test("what the file has wrong and what the database refuses are reported together, by line", async () => {
    await inUse("held");
    expect(
      await problemsOf(
        file(
          "A0,FRA,,Dell,R450,0,64,1000,,,",
          "A1,AMS,,HP,R450,8,64,1000,,,",
          "A2,FRA,,Dell,R450,8,x,1000,,,",
        ),
      ),
    ).toMatchObject([
      { line: 2, column: "cpu_cores" },
      { line: 3, column: "site" },
      { line: 3, column: "manufacturer" },
      { line: 4, column: "memory_gib" },
    ]);
    expect(await counts()).toEqual({ machines: 1, sites: 1 });
  });

  test("more than 1,000 conflicts: the first by line, and how many more", async () => {
    const pool = database().pool;
    const rows = Array.from({ length: 600 }, (_, at) => `A${at},FRA,Dell,R450,8,64,1000,ready`);
    await importFile([`${REQUIRED},status`, ...rows].join("\n"));
    await pool.query(
      `WITH o AS (INSERT INTO organization (slug, name) VALUES ('many', 'many') RETURNING id)
       INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, hold_seconds, expires_at, choice)
       SELECT o.id, m.id, 'o', m.asset_tag, '{}', 900, clock_timestamp() + interval '900 seconds', '{}' FROM o, machine m`,
    );
    const changed = rows.map((row) => row.replace("Dell,R450", "HP,R650"));
    const problems = await problemsOf([`${REQUIRED},status`, ...changed].join("\n"));
    expect(problems).toHaveLength(1001);
    expect(problems.slice(998)).toMatchObject([
      { line: 501, column: "manufacturer" },
      { line: 501, column: "model" },
      { line: 501, column: null, reason: "and 200 more problems" },
    ]);
  });

  test("a hold past its deadline gives way, and reads as expired at that deadline", async () => {
    const pool = database().pool;
    const id = await hold(pool, await machine(pool, { assetTag: "A1" }), { endsIn: -60 });
    expect(await importFile(file("A1,AMS,,HP,R650,9,65,1001,,,"))).toEqual(
      imported({ updated: 1, sitesCreated: ["AMS"] }),
    );
    const { rows } = await pool.query(
      "SELECT state, settled_at = expires_at AS at_deadline FROM reservation WHERE id = $1",
      [id],
    );
    expect(rows).toEqual([{ state: "expired", at_deadline: true }]);
    expect(await stored()).toMatchObject([{ site: "AMS", manufacturer: "HP", cpu_cores: 9 }]);
  });

  test("a refused file expires no hold", async () => {
    const pool = database().pool;
    await inUse("held");
    const id = await hold(pool, await machine(pool, { assetTag: "A2" }), { endsIn: -60 });
    await problemsOf(file(IDENTITY.replace("Dell", "HP"), "A2,FRA,,HP,R450,8,64,1000,,,"));
    const { rows } = await pool.query("SELECT state FROM reservation WHERE id = $1", [id]);
    expect(rows).toEqual([{ state: "held" }]);
  });
});

describe("a dry run", () => {
  test("reports and counts the same, and writes nothing", async () => {
    const pool = database().pool;
    const id = await hold(pool, await machine(pool, { assetTag: "A1" }), { endsIn: -60 });
    const before = await stored();
    const content = file("A1,FRA,,HP,R450,8,64,1000,,planned,", "A2,AMS,,Dell,R450,8,64,1000,,,");
    const expected = { created: 1, updated: 1, sitesCreated: ["AMS"], statusKept: 1 };
    expect(await importFile(content, { dryRun: true })).toEqual(imported({ ...expected, dryRun: true }));
    expect(await stored()).toEqual(before);
    expect(await counts()).toEqual({ machines: 1, sites: 1 });
    const { rows } = await pool.query("SELECT state FROM reservation WHERE id = $1", [id]);
    expect(rows).toEqual([{ state: "held" }]);
    expect(await importFile(content)).toEqual(imported(expected));
  });

  test("refuses what the import would refuse", async () => {
    await hold(database().pool, await machine(database().pool, { assetTag: "A1" }));
    const content = file("A1,AMS,,Dell,R450,8,64,1000,,,", "A2,FRA,,Dell,R450,0,64,1000,,,");
    expect(await importFile(content, { dryRun: true })).toEqual(await importFile(content));
  });
});

describe("at the same time", () => {
  /** Waits until `backends` of this database wait for a lock of this kind. */
  const waiting = (event: string, backends: number) =>
    waitUntil(async () => {
      const { rowCount } = await database().pool.query(
        `SELECT FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = $1`,
        [event],
      );
      return rowCount === backends;
    }, `${backends} sessions wait for ${event}`);

  test("two imports of one file: one creates everything, the other finds it unchanged", async () => {
    const rows = Array.from({ length: 500 }, (_, at) => `A${at},S${at % 7},Dell,R450,8,64,1000`);
    const content = [REQUIRED, ...rows].join("\n");
    const gate = await session();
    // The lock that machine_import takes first.
    await gate.query("SELECT pg_advisory_lock(4865110206)");
    const both = Promise.all([importFile(content), importFile(content, { through: two })]);
    await waiting("advisory", 2);
    await gate.query("SELECT pg_advisory_unlock(4865110206)");
    const results = (await both).sort((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
    expect(results).toEqual([
      imported({ unchanged: 500 }),
      imported({ created: 500, sitesCreated: ["S0", "S1", "S2", "S3", "S4", "S5", "S6"] }),
    ]);
    expect(await counts()).toEqual({ machines: 500, sites: 7 });
  });

  test("imports of overlapping files in opposite order: both go in, and neither ends the other", async () => {
    const rows = Array.from({ length: 300 }, (_, at) => `A${at},FRA,Dell,R450,8,64,1000`);
    await importFile([REQUIRED, ...rows].join("\n"));
    const heavier = rows.map((row) => row.replace("64,1000", "128,1000"));
    const results = await Promise.all([
      importFile([REQUIRED, ...heavier].join("\n")),
      importFile([REQUIRED, ...heavier.toReversed()].join("\n"), { through: two }),
    ]);
    expect(results.map((result) => result.kind === "MachinesImported" && result.updated).sort()).toEqual([
      0, 300,
    ]);
  });

  test("an order that wins the machine first: the import waits, and judges the machine as held", async () => {
    const id = await machine(database().pool, { assetTag: "A1" });
    const other = await session();
    await other.query(
      "INSERT INTO organization (slug, name) VALUES ('first', 'first') ON CONFLICT DO NOTHING",
    );
    const { rows } = await other.query<{ id: string }>("SELECT id FROM organization WHERE slug = 'first'");
    await other.query("BEGIN");
    await other.query("SELECT FROM machine WHERE id = $1 FOR UPDATE", [id]);
    const importing = importFile(file("A1,FRA,,HP,R450,8,64,1000,,,"));
    await waiting("transactionid", 1);
    await hold(other, id, { organization: (rows[0] as { id: string }).id });
    await other.query("COMMIT");
    expect(await importing).toMatchObject({
      kind: "ImportRefused",
      problems: [{ line: 2, column: "manufacturer" }],
    });
    expect(await stored()).toMatchObject([{ manufacturer: "Dell" }]);
  });

  test("an order that gives the machine up: the import waits, and goes in", async () => {
    const id = await machine(database().pool, { assetTag: "A1" });
    const other = await session();
    await other.query("BEGIN");
    await other.query("SELECT FROM machine WHERE id = $1 FOR UPDATE", [id]);
    const importing = importFile(file("A1,FRA,,HP,R450,8,64,1000,,,"));
    await waiting("transactionid", 1);
    await other.query("ROLLBACK");
    expect(await importing).toEqual(imported({ updated: 1 }));
  });

  test("a machine entered by hand meanwhile is updated, not an error", async () => {
    const other = await session();
    await database().pool.query("INSERT INTO site (code, name) VALUES ('FRA', 'FRA')");
    await other.query("BEGIN");
    await other.query(
      `INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib)
       SELECT 'A1', id, 'Dell', 'R450', 8, 64, 1000 FROM site`,
    );
    const importing = importFile(file("A1,FRA,,HP,R450,8,64,1000,,,", "A2,FRA,,HP,R450,8,64,1000,,,"));
    await waiting("transactionid", 1);
    await other.query("COMMIT");
    expect(await importing).toEqual(imported({ created: 1, updated: 1 }));
    expect(await stored()).toMatchObject([{ manufacturer: "HP" }, { manufacturer: "HP" }]);
  });

  test("a site created by hand meanwhile is used", async () => {
    const other = await session();
    await other.query("BEGIN");
    await other.query("INSERT INTO site (code, name) VALUES ('FRA', 'Frankfurt')");
    const importing = importFile(file("A1,FRA,,HP,R450,8,64,1000,,,"));
    await waiting("transactionid", 1);
    await other.query("COMMIT");
    expect(await importing).toEqual(imported({ created: 1 }));
    expect((await database().pool.query("SELECT name FROM site")).rows).toEqual([{ name: "Frankfurt" }]);
  });
});

test("any valid row comes out of the table as it stands in the file", async () => {
  // Without white space at the ends, which is dropped, and without carriage returns, which become line feeds.
  const words = (max: number) =>
    fc
      .string({ unit: "grapheme", minLength: 1, maxLength: max })
      .map((value) => [...value.replace(/\p{Cc}/gu, "\n")].slice(0, max).join("").replace(/\r/g, "\n").trim())
      .filter((value) => value !== "");
  const rows = fc.uniqueArray(
    fc.record({
      asset_tag: words(40),
      site: words(20),
      location: fc.option(words(40)),
      manufacturer: words(40),
      model: words(40),
      cpu_cores: fc.integer({ min: 1, max: 100_000 }),
      memory_gib: fc.integer({ min: 1, max: 100_000_000 }),
      storage_gib: fc.integer({ min: 0, max: 1_000_000_000 }),
      labels: fc.uniqueArray(
        words(10)
          .map((value) => value.replaceAll(";", "").trim())
          .filter((value) => value !== ""),
        { maxLength: 6 },
      ),
      status: fc.constantFrom(...MACHINE_STATUSES),
      monthly_price_cents: fc.option(fc.integer({ min: 0, max: 999_999_999 })),
    }),
    { selector: (row) => row.asset_tag, minLength: 1, maxLength: 30 },
  );
  const quoted = (value: string) => `"${value.replaceAll('"', '""')}"`;
  const price = (cents: number) => `${Math.floor(cents / 100)}.${String(cents % 100).padStart(2, "0")}`;
  await fc.assert(
    fc.asyncProperty(
      rows,
      fc.constantFrom("\n", "\r\n"),
      fc.nat({ max: 200 }),
      async (machines, end, cut) => {
        await database().pool.query(
          "TRUNCATE site, machine, reservation, service_binding, rack, rack_reservation",
        );
        const lines = machines.map((row) =>
          [
            row.asset_tag,
            row.site,
            row.location ?? "",
            row.manufacturer,
            row.model,
            String(row.cpu_cores),
            String(row.memory_gib),
            String(row.storage_gib),
            row.labels.join(";"),
            row.status.toUpperCase(),
            row.monthly_price_cents === null ? "" : price(row.monthly_price_cents),
          ]
            .map(quoted)
            .join(","),
        );
        const bytes = Buffer.from([ALL, ...lines].join(end));
        const go = () =>
          machinesImport(one.db, pieces(bytes.subarray(0, cut), bytes.subarray(cut)), { dryRun: false });
        expect(await go()).toMatchObject({ kind: "MachinesImported", created: machines.length });
        const expected = machines.toSorted((a, b) =>
          Buffer.compare(Buffer.from(a.asset_tag), Buffer.from(b.asset_tag)),
        );
        expect(await stored()).toEqual(expected);
        expect(await go()).toMatchObject({ unchanged: machines.length, statusKept: 0 });
      },
    ),
    { numRuns: 30 },
  );
});
