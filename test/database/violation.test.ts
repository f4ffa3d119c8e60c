import { expect, test } from "vitest";
import { databaseOpen } from "../../src/database/client.ts";
import { violates, violationOf, withRetry } from "../../src/database/violation.ts";
import { TryAgain } from "../../src/refusal.ts";
import { useTestDatabase } from "../support/database.ts";

const database = useTestDatabase();

async function caught(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => undefined,
    (error: unknown) => error,
  );
}

// The shapes in which adapters have told a violation, by version.
const byIndexName = {
  code: "P2010",
  meta: { driverAdapterError: { cause: { originalCode: "23505", constraint: { index: "site_code" } } } },
};
const byFields = {
  code: "P2002",
  meta: { driverAdapterError: { cause: { originalCode: "23505", constraint: { fields: ["code"] } } } },
};
const fromTheDriver = { severity: "ERROR", code: "23505", constraint: "site_code" };

test("a constraint's name is found in every shape that has one", () => {
  expect(violationOf(byIndexName)).toEqual({ sqlState: "23505", constraint: "site_code", fields: null });
  expect(violationOf(fromTheDriver)).toEqual({ sqlState: "23505", constraint: "site_code", fields: null });
  expect(
    violationOf(new Error("wrapped", { cause: new Error("again", { cause: fromTheDriver }) }))?.constraint,
  ).toBe("site_code");
  expect(violates(byIndexName, "site_code")).toBe(true);
  expect(violates(byIndexName, "machine_asset_tag")).toBe(false);
});

test("a list of fields is read as such, and is no constraint's name: nothing is guessed from it (H10)", () => {
  expect(violationOf(byFields)).toEqual({ sqlState: "23505", constraint: null, fields: ["code"] });
  expect(violates(byFields, "site_code")).toBe(false);
});

test("what does not come from the database is no violation", () => {
  for (const error of [new Error("x"), { code: "ECONNREFUSED" }, { code: "P2025" }, null, "text"]) {
    expect(violationOf(error)).toBeNull();
  }
  const circular: Record<string, unknown> = {};
  circular["cause"] = circular;
  expect(violationOf(circular)).toBeNull();
});

test("the installed adapter names the constraint, by the model API and by raw SQL, for unique, foreign key and raised rules", async () => {
  const { db, close } = databaseOpen(database().url, {
    poolSize: 2,
    namedStatements: true,
    onError: () => undefined,
  });
  try {
    await db.site.create({ data: { code: "FRA", name: "x" } });
    expect(violates(await caught(db.site.create({ data: { code: "FRA", name: "x" } })), "site_code")).toBe(
      true,
    );
    expect(
      violates(await caught(db.$executeRaw`INSERT INTO site (code, name) VALUES ('FRA', 'x')`), "site_code"),
    ).toBe(true);
    const foreign = await caught(
      db.$executeRaw`INSERT INTO feature_override VALUES (gen_random_uuid(), 'datacenter', true)`,
    );
    expect(violates(foreign, "feature_override_organization_id_fkey")).toBe(true);
  } finally {
    await close();
  }
});

test("a deadlock is repeated, three times in all; a lock that is not to be had is not; a bug is thrown as it is", async () => {
  const failing = (code: string) => {
    let tries = 0;
    const run = withRetry(async () => {
      tries += 1;
      throw { severity: "ERROR", code };
    });
    return caught(run).then((error) => ({ error, tries }));
  };
  for (const code of ["40P01", "40001"]) {
    const { error, tries } = await failing(code);
    expect(error).toBeInstanceOf(TryAgain);
    expect(tries).toBe(3);
  }
  const locked = await failing("55P03");
  expect(locked.error).toBeInstanceOf(TryAgain);
  expect(locked.tries).toBe(1);
  const bug = await failing("42P01");
  expect(bug).toEqual({ error: { severity: "ERROR", code: "42P01" }, tries: 1 });
});
