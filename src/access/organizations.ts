import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import type { Page } from "../graphql/connection.ts";
import { type CreateOrganizationResult, type OrganizationRow, slugInvalid, slugTaken } from "./results.ts";
import { slugRead, slugVariants } from "./slug.ts";
import { organizationUnknown, type Sight } from "./viewer.ts";

const COLUMNS = { id: true, slug: true, name: true, holdLimit: true } as const;

/** Creates an organization. Twice at once with one slug: one wins, the other gets SlugTaken. */
export async function organizationCreate(
  db: Db,
  input: { slug: string; name: string },
): Promise<CreateOrganizationResult> {
  const reading = slugRead(input.slug);
  if ("problem" in reading) return slugInvalid(input.slug, reading.problem);
  try {
    const organization = await db.organization.create({
      data: { slug: reading.slug, name: input.name },
      select: COLUMNS,
    });
    return { kind: "OrganizationCreated", organization };
  } catch (error) {
    if (!violates(error, "organization_slug")) throw error;
    const variants = slugVariants(reading.slug, 8);
    const taken = await db.organization.findMany({
      where: { slug: { in: variants } },
      select: { slug: true },
    });
    const suggestions = variants.filter((variant) => !taken.some((row) => row.slug === variant)).slice(0, 3);
    return slugTaken(reading.slug, suggestions);
  }
}

/**
 * Sets how many machines an organization may hold at one time; null follows the configured limit.
 * Holds above a lowered limit stay; the next reservation counts them.
 * @throws InvalidInput for an unknown organization.
 */
export async function organizationHoldLimitSet(
  db: Db,
  organizationId: string,
  holdLimit: number | null,
): Promise<OrganizationRow> {
  const changed = await db.organization.updateManyAndReturn({
    where: { id: organizationId },
    data: { holdLimit },
    select: COLUMNS,
  });
  if (changed[0] === undefined) throw organizationUnknown("input.organizationId");
  return changed[0];
}

/** Organizations within sight, by id; those out of sight are absent. */
export async function organizationsByIds(
  db: Db,
  sight: Sight,
  ids: readonly string[],
): Promise<OrganizationRow[]> {
  return db.organization.findMany({
    where: { AND: [inSight(sight), { id: { in: [...ids] } }] },
    select: COLUMNS,
  });
}

/** The organization with this slug, whoever asks; for credentials and the command line. */
export async function organizationBySlug(db: Db, slug: string): Promise<OrganizationRow | null> {
  return db.organization.findUnique({ where: { slug }, select: COLUMNS });
}

/** The organization that a token belongs to, whatever else the token may see. */
export async function organizationOwn(db: Db, organizationId: string): Promise<OrganizationRow | null> {
  return (
    (await organizationsByIds(db, { kind: "organization", organizationId }, [organizationId]))[0] ?? null
  );
}

/** A page of organizations in the order of their slugs, one more than asked for if there are more. */
export async function organizationsPage(
  db: Db,
  sight: Sight,
  page: Page<string>,
): Promise<OrganizationRow[]> {
  const between = {
    ...(page.after === null ? {} : { gt: page.after }),
    ...(page.before === null ? {} : { lt: page.before }),
  };
  return db.organization.findMany({
    where: { AND: [inSight(sight), { slug: between }] },
    orderBy: { slug: page.forward ? "asc" : "desc" },
    take: page.size + 1,
    select: COLUMNS,
  });
}

export async function organizationsCount(db: Db, sight: Sight): Promise<number> {
  return db.organization.count({ where: inSight(sight) });
}

function inSight(sight: Sight) {
  switch (sight.kind) {
    case "all":
      return {};
    case "organization":
      return { id: sight.organizationId };
    case "none":
      return { id: { in: [] as string[] } };
  }
}
