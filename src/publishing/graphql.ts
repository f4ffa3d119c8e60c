import { z } from "zod";
import { ModuleDisabledRef, OrganizationRef, SlugInvalidRef, SlugTakenRef } from "../access/graphql.ts";
import { actingOrganization, PUBLISHING, publishingSightOf } from "../access/viewer.ts";
import { builder } from "../graphql/builder.ts";
import { connectionOf, cursorsOf, PAGING } from "../graphql/connection.ts";
import { inputParse, text } from "../graphql/input.ts";
import { RefusalRef } from "../graphql/refusal.ts";
import { vouched } from "../graphql/vouched.ts";
import { CoolingDownRef } from "../reservations/graphql.ts";
import { appUrl } from "./builds.ts";
import { publishCancel } from "./cancelPublish.ts";
import { projectCreate } from "./createProject.ts";
import { deploymentFollow } from "./followDeployment.ts";
import {
  cancelPublishInput,
  createProjectInput,
  deploymentEventsInput,
  projectFilter,
  publishAppInput,
} from "./inputs.ts";
import { appPublish } from "./publishApp.ts";
import {
  attemptsCount,
  attemptsPage,
  type ProjectKey,
  projectsCount,
  projectsPage,
} from "./queries/deployments.ts";
import type {
  DeploymentNotFound,
  ProjectCreated,
  ProjectNotFound,
  PublishCancelled,
  PublishInProgress,
  PublishNotRunning,
  PublishStarted,
} from "./results.ts";
import type { AttemptRow, DeploymentRow, EventRow, ProjectRow } from "./rows.ts";

const DeploymentStateRef = builder.enumType("DeploymentState", {
  description: "What the current attempt of a deployment has come to. What is served says `liveAttempt`.",
  values: {
    BUILDING: { value: "building", description: "An attempt is running." },
    LIVE: { value: "live", description: "The current attempt is the one being served." },
    FAILED: {
      value: "failed",
      description: "The current attempt did not succeed; `error` says why. What was live before still is.",
    },
    CANCELLED: {
      value: "cancelled",
      description: "Somebody ended the current attempt. What was live before still is.",
    },
  } as const,
});
const AttemptStateRef = builder.enumType("AttemptState", {
  description: "An attempt's life: BUILDING, then one of the others; LIVE may become SUPERSEDED.",
  values: {
    BUILDING: { value: "building", description: "It is running." },
    LIVE: { value: "live", description: "Its build is being served." },
    FAILED: { value: "failed", description: "It did not succeed; `error` says why." },
    CANCELLED: { value: "cancelled", description: "Somebody ended it." },
    ABANDONED: {
      value: "abandoned",
      description: "The process that ran it died, hung past the limit, or was shut down.",
    },
    SUPERSEDED: { value: "superseded", description: "It was live until a newer attempt went live." },
  } as const,
});

const ProjectRef = builder.objectRef<ProjectRow>("Project");
const DeploymentRef = builder.objectRef<DeploymentRow>("Deployment");
const PublishAttemptRef = builder.objectRef<AttemptRow>("PublishAttempt");

const attemptKey = z.int32();

builder.node(ProjectRef, {
  description: "An app of an organization. It is published to one place, its deployment.",
  id: { resolve: (project) => project.id },
  loadOne: (id, context) => context.loaders.project.load(id),
  fields: (t) => ({
    organization: t.field({
      type: OrganizationRef,
      description: "Whose it is.",
      resolve: async (project, _args, context) =>
        vouched(await context.loaders.organization.load(project.organizationId)),
    }),
    name: t.exposeString("name", { description: "Name for people." }),
    deployment: t.field({
      type: DeploymentRef,
      nullable: true,
      description: "Where it is published; null until it is published for the first time.",
      resolve: (project, _args, context) => context.loaders.deploymentOfProject.load(project.id),
    }),
  }),
});

builder.node(DeploymentRef, {
  description: "One row per project, reused by every publish; claiming it is the lock.",
  id: { resolve: (deployment) => deployment.id },
  loadOne: (id, context) => context.loaders.deployment.load(id),
  fields: (t) => ({
    project: t.field({
      type: ProjectRef,
      description: "The project.",
      resolve: async (deployment, _args, context) =>
        vouched(await context.loaders.project.load(deployment.projectId)),
    }),
    slug: t.exposeString("slug", {
      description:
        "The name that the current attempt publishes under; once an attempt has ended without going live, the one that is live, if one is.",
    }),
    url: t.string({
      description: "Where an app with this slug is served, once it is live.",
      resolve: (d, _args, { config }) =>
        d.liveUrl !== null && d.liveSlug === d.slug ? d.liveUrl : appUrl(d.slug, config.publishing.appDomain),
    }),
    liveUrl: t.exposeString("liveUrl", {
      nullable: true,
      description: "Where the live build is served, whatever a newer attempt does; null until one was live.",
    }),
    state: t.field({
      type: DeploymentStateRef,
      description: "What the current attempt has come to.",
      resolve: (d) => d.state,
    }),
    attempt: t.exposeInt("attempt", {
      description:
        "Number of the current attempt. Grows by one with every claim; a write that names an older attempt changes nothing.",
    }),
    claimedAt: t.expose("claimedAt", {
      type: "DateTime",
      nullable: true,
      description: "When the current attempt began.",
    }),
    heartbeatAt: t.expose("heartbeatAt", {
      type: "DateTime",
      nullable: true,
      description: "When the process that runs it was last heard of.",
    }),
    error: t.exposeString("error", {
      nullable: true,
      description: "Why the current attempt failed, for a person; never an older attempt's error.",
    }),
    liveAttempt: t.exposeInt("liveAttempt", {
      nullable: true,
      description:
        "The attempt whose build is being served; stays while a newer one is building or has failed.",
    }),
    sequence: t.exposeInt("sequence", {
      description: "Number of the last change, for `deploymentEvents(afterSequence:)`.",
    }),
    attempts: t.connection(
      {
        type: PublishAttemptRef,
        description: `Every attempt, newest first. ${PAGING}`,
        resolve: async (deployment, args, context) => {
          const cursors = cursorsOf("attempts", deployment.id, attemptKey);
          const page = cursors.page(args, context.rows);
          const rows = await attemptsPage(context.db, deployment.id, page);
          return connectionOf(
            cursors,
            page,
            rows,
            (row) => row.number,
            () => attemptsCount(context.db, deployment.id),
          );
        },
      },
      { name: "PublishAttemptConnection", description: "A page of attempts." },
      { name: "PublishAttemptEdge", description: "One row of the page." },
    ),
  }),
});

builder.node(PublishAttemptRef, {
  description: "One publish of a deployment, with its own outcome.",
  id: { resolve: (attempt) => attempt.id },
  loadOne: (id, context) => context.loaders.attempt.load(id),
  fields: (t) => ({
    number: t.exposeInt("number", { description: "1 for a deployment's first." }),
    state: t.field({ type: AttemptStateRef, description: "What came of it.", resolve: (a) => a.state }),
    slug: t.exposeString("slug", { description: "The name that it published under." }),
    source: t.exposeString("source", { description: "What was built." }),
    url: t.exposeString("url", {
      nullable: true,
      description: "Where its build was served; null unless it was live.",
    }),
    error: t.exposeString("error", { nullable: true, description: "Why it did not succeed, for a person." }),
    startedAt: t.expose("startedAt", { type: "DateTime", description: "When it was claimed." }),
    finishedAt: t.expose("finishedAt", {
      type: "DateTime",
      nullable: true,
      description: "When it ended; null while it builds.",
    }),
  }),
});

const DeploymentEventRef = builder.objectRef<EventRow>("DeploymentEvent").implement({
  description: "A change of a deployment, with the deployment as it was then.",
  fields: (t) => ({
    sequence: t.exposeInt("sequence", {
      description:
        "Grows by one per change of this deployment, without gaps: a client resumes after the last one it saw.",
    }),
    deployment: t.field({
      type: DeploymentRef,
      description: "The deployment right after this change.",
      resolve: (event) => event.deployment,
    }),
    message: t.exposeString("message", { description: "What happened, for a person." }),
    at: t.expose("at", { type: "DateTime", description: "When it happened." }),
  }),
});

const ProjectCreatedRef = builder.objectRef<ProjectCreated>("ProjectCreated").implement({
  description: "The project exists now.",
  fields: (t) => ({
    project: t.field({ type: ProjectRef, description: "The new project.", resolve: (r) => r.project }),
  }),
});
const CreateProjectResultRef = builder.unionType("CreateProjectResult", {
  description: "What became of createProject.",
  types: [ProjectCreatedRef],
  resolveType: (result) => result.kind,
});

const PublishStartedRef = builder.objectRef<PublishStarted>("PublishStarted").implement({
  description:
    "The right to publish is yours, and the build is being asked for. Follow it with deploymentEvents.",
  fields: (t) => ({
    deployment: t.field({
      type: DeploymentRef,
      description: "The deployment.",
      resolve: (r) => r.deployment,
    }),
    attempt: t.exposeInt("attempt", { description: "Number of this attempt." }),
  }),
});
const PublishInProgressRef = builder.objectRef<PublishInProgress>("PublishInProgress").implement({
  description: "Somebody is already publishing this project: follow that one, there is nothing to fix.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    deployment: t.field({
      type: DeploymentRef,
      description: "The deployment, to follow.",
      resolve: (r) => r.deployment,
    }),
    attempt: t.exposeInt("attempt", { description: "Number of the running attempt." }),
    since: t.expose("since", { type: "DateTime", description: "When it began." }),
    heartbeatAt: t.expose("heartbeatAt", {
      type: "DateTime",
      description: "When the process that runs it was last heard of.",
    }),
  }),
});
const ProjectNotFoundRef = builder.objectRef<ProjectNotFound>("ProjectNotFound").implement({
  description: "No such project among those you may see.",
  interfaces: [RefusalRef],
});
const PublishAppResultRef = builder.unionType("PublishAppResult", {
  description: "What became of publishApp.",
  types: [
    PublishStartedRef,
    PublishInProgressRef,
    SlugTakenRef,
    SlugInvalidRef,
    ProjectNotFoundRef,
    CoolingDownRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});

const PublishCancelledRef = builder.objectRef<PublishCancelled>("PublishCancelled").implement({
  description: "The attempt is over for good, whatever its build does afterwards.",
  fields: (t) => ({
    deployment: t.field({
      type: DeploymentRef,
      description: "The deployment.",
      resolve: (r) => r.deployment,
    }),
  }),
});
const PublishNotRunningRef = builder.objectRef<PublishNotRunning>("PublishNotRunning").implement({
  description: "The attempt that was named does not run.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    deployment: t.field({
      type: DeploymentRef,
      description: "The deployment as it is.",
      resolve: (r) => r.deployment,
    }),
  }),
});
const DeploymentNotFoundRef = builder.objectRef<DeploymentNotFound>("DeploymentNotFound").implement({
  description: "No such deployment among those you may see.",
  interfaces: [RefusalRef],
});
const CancelPublishResultRef = builder.unionType("CancelPublishResult", {
  description: "What became of cancelPublish.",
  types: [PublishCancelledRef, PublishNotRunningRef, DeploymentNotFoundRef],
  resolveType: (result) => result.kind,
});

const CreateProjectInput = builder.inputType("CreateProjectInput", {
  description:
    "A new project. `organizationId` is required for OPERATOR tokens and must be absent or the token's own for TENANT.",
  fields: (t) => ({
    organizationId: t.id({ description: "Whose project it is." }),
    name: t.string({ required: true, description: "Name for people, 1 to 200 characters." }),
  }),
});
const PublishAppInput = builder.inputType("PublishAppInput", {
  description: "A build to make and to serve.",
  fields: (t) => ({
    projectId: t.id({ required: true, description: "The project." }),
    slug: t.string({
      required: true,
      description:
        "The app's name in its address: one DNS label of a-z, 0-9 and inner hyphens, at most 63 characters. Another one than before renames the app when it goes live.",
    }),
    source: t.string({
      required: true,
      description: "What to build, as the build service understands it; 1 to 2000 characters.",
    }),
  }),
});
const CancelPublishInput = builder.inputType("CancelPublishInput", {
  description: "A running attempt to end.",
  fields: (t) => ({
    deploymentId: t.id({ required: true, description: "The deployment." }),
    attempt: t.int({
      required: true,
      description: "The attempt that is meant; a newer one is never cancelled by mistake.",
    }),
  }),
});

const projectKey: z.ZodType<ProjectKey> = z.tuple([text(200), z.guid()]);

builder.queryField("projects", (t) =>
  t.connection(
    {
      type: ProjectRef,
      description: `Projects you may see, by name; a tenant sees its own organization's. OPERATOR, TENANT. ${PAGING}`,
      authScopes: { role: PUBLISHING },
      args: { organizationId: t.arg.id({ description: "Only this organization's." }) },
      resolve: async (_root, args, context) => {
        const given = inputParse(projectFilter, { organizationId: args.organizationId }, "");
        const sight = publishingSightOf(context.viewer);
        const organizationId =
          sight.kind === "organization" || given.organizationId !== null
            ? actingOrganization(context.viewer, given.organizationId, "organizationId")
            : null;
        const cursors = cursorsOf("projects", organizationId ?? "*", projectKey);
        const page = cursors.page(args, context.rows);
        const rows = await projectsPage(context.db, organizationId, page);
        return connectionOf(
          cursors,
          page,
          rows,
          (row): ProjectKey => [row.name, row.id],
          () => projectsCount(context.db, organizationId),
        );
      },
    },
    { name: "ProjectConnection", description: "A page of projects." },
    { name: "ProjectEdge", description: "One row of the page." },
  ),
);

builder.mutationFields((t) => ({
  createProject: t.field({
    type: CreateProjectResultRef,
    nullable: true,
    description: "Creates a project. OPERATOR, TENANT.",
    authScopes: { role: PUBLISHING },
    args: { input: t.arg({ type: CreateProjectInput, required: true, description: "The project." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(createProjectInput, args.input, "input");
      const organizationId = actingOrganization(context.viewer, input.organizationId, "input.organizationId");
      return projectCreate(context.db, organizationId, input.name);
    },
  }),
  publishApp: t.field({
    type: PublishAppResultRef,
    nullable: true,
    description:
      "Publishes a project's app: one build at a time. Whoever comes second is told what runs, and follows it. OPERATOR, TENANT.",
    authScopes: { role: PUBLISHING },
    args: { input: t.arg({ type: PublishAppInput, required: true, description: "What to publish." }) },
    resolve: (_root, args, { db, config, publisher, viewer }) =>
      appPublish(
        { db, config: config.publishing, publisher },
        viewer,
        inputParse(publishAppInput, args.input, "input"),
      ),
  }),
  cancelPublish: t.field({
    type: CancelPublishResultRef,
    nullable: true,
    description: "Ends a running attempt for good. Works with the switch closed. OPERATOR, TENANT.",
    authScopes: { role: PUBLISHING },
    args: { input: t.arg({ type: CancelPublishInput, required: true, description: "The attempt." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(cancelPublishInput, args.input, "input");
      return publishCancel(context, context.viewer, input.deploymentId, input.attempt);
    },
  }),
}));

builder.subscriptionField("deploymentEvents", (t) =>
  t.field({
    type: DeploymentEventRef,
    description:
      "Starts with the present state, then every change in order; completes when no attempt is running. With `afterSequence` it starts after that change instead, and completes at once if there is nothing more to tell. OPERATOR, TENANT.",
    authScopes: { role: PUBLISHING },
    args: {
      deploymentId: t.arg.id({ required: true, description: "The deployment." }),
      afterSequence: t.arg.int({ description: "The last change that you have seen, to resume." }),
    },
    subscribe: (_root, args, context) => {
      const { deploymentId, afterSequence } = inputParse(deploymentEventsInput, args, "");
      return deploymentFollow(context, {
        deploymentId,
        afterSequence,
        sight: publishingSightOf(context.viewer),
        sightNow: async () => {
          const viewer = await context.viewerAgain();
          return viewer === null ? null : publishingSightOf(viewer);
        },
        gone: context.gone,
      });
    },
    resolve: (event, _args, context) => {
      if (event instanceof Error) throw event;
      context.renew();
      return event;
    },
  }),
);
