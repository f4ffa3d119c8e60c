// Creates a project. Twice at once: two projects; a name is for people and identifies nothing.
import { organizationUnknown } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import type { CreateProjectResult } from "./results.ts";

/** @throws InvalidInput for an unknown organization. */
export async function projectCreate(
  db: Db,
  organizationId: string,
  name: string,
): Promise<CreateProjectResult> {
  try {
    const project = await db.project.create({
      data: { organizationId, name },
      select: { id: true, organizationId: true, name: true },
    });
    return { kind: "ProjectCreated", project };
  } catch (error) {
    if (violates(error, "project_organization_id_fkey")) throw organizationUnknown("input.organizationId");
    throw error;
  }
}
