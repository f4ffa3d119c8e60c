import type { Db } from "../database/client.ts";

/** Id of the demo's first organization: fixed, so that examples can name it. */
export const DEMO_ORGANIZATION = "0ac3e000-0000-4000-8000-000000000001";

/** Id of the demo's project: fixed, so that examples can name it. */
export const DEMO_PROJECT = "0ac3e000-0000-4000-8000-000000000002";

const SITES = [
  { code: "FRA", name: "Frankfurt" },
  { code: "AMS", name: "Amsterdam" },
  { code: "WAW", name: "Warsaw" },
];

const SHAPES = [
  {
    manufacturer: "Dell",
    model: "PowerEdge R250",
    cpuCores: 4,
    memoryGib: 32,
    storageGib: 960,
    labels: ["ecc", "sata-ssd"],
  },
  {
    manufacturer: "Dell",
    model: "PowerEdge R450",
    cpuCores: 16,
    memoryGib: 128,
    storageGib: 3840,
    labels: ["ecc", "nvme"],
  },
  {
    manufacturer: "Supermicro",
    model: "AS-1015A",
    cpuCores: 8,
    memoryGib: 64,
    storageGib: 1920,
    labels: ["ecc", "nvme"],
  },
  {
    manufacturer: "Lenovo",
    model: "SR645",
    cpuCores: 32,
    memoryGib: 256,
    storageGib: 7680,
    labels: ["ecc", "nvme", "dual-psu"],
  },
];

/**
 * Fills an empty database with something to try: three sites, 36 machines, two organizations, a project,
 * and both switches open. A database in which anything stands is left alone, so that a second start,
 * or two at once, add nothing (the organization's fixed id decides).
 * @returns whether it was filled.
 */
export async function demoFill(db: Db): Promise<boolean> {
  if ((await db.site.count()) > 0 || (await db.organization.count()) > 0) return false;
  const first = await db.organization.createManyAndReturn({
    data: [
      { id: DEMO_ORGANIZATION, slug: "acme", name: "Acme Games" },
      { slug: "globex", name: "Globex Analytics" },
    ],
    skipDuplicates: true,
  });
  if (first.length === 0) return false;
  await db.rolloutSwitch.updateMany({ data: { enabled: true } });
  await db.project.create({
    data: { id: DEMO_PROJECT, organizationId: DEMO_ORGANIZATION, name: "Acme Shop" },
  });
  const sites = await db.site.createManyAndReturn({ data: SITES });
  await db.machine.createMany({
    data: sites.flatMap((site) =>
      SHAPES.flatMap((shape, at) =>
        Array.from({ length: 3 }, (_, index) => ({
          ...shape,
          siteId: site.id,
          assetTag: `${site.code}-${String(at * 3 + index + 1).padStart(4, "0")}`,
          status: at === 3 && index === 2 ? "maintenance" : "ready",
        })),
      ),
    ),
  });
  return true;
}
