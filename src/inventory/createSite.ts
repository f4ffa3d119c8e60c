import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import { type CreateSiteResult, codeTaken } from "./results.ts";

/** Creates a site. Twice at once with one code: one wins, the other gets CodeTaken. */
export async function siteCreate(db: Db, input: { code: string; name: string }): Promise<CreateSiteResult> {
  try {
    const site = await db.site.create({ data: input, select: { id: true, code: true, name: true } });
    return { kind: "SiteCreated", site };
  } catch (error) {
    if (violates(error, "site_code")) return codeTaken(input.code);
    throw error;
  }
}
