import type { GraphiQLOptions } from "graphql-yoga";
import { globalIdEncode } from "../graphql/globalId.ts";
import { DEMO_ORGANIZATION, DEMO_PROJECT } from "./demo.ts";

const inventory = `# 1. Look at the inventory: what is there, and what is free.
# First put your operator token into "Headers" below
# (each tab has its own).
query Inventory {
  viewer { role tokenName }
  fleet { siteCode machines free held bound notReady }
  machines(first: 20, filter: { availability: FREE }) {
    totalCount
    edges { node { assetTag site { code } model cpuCores memoryGib storageGib labels availability } }
    pageInfo { hasNextPage endCursor }
  }
}`;

const preview = `# 2. Preview an order: every machine, and every
# reason that rules it out. Writes nothing.
query Preview {
  allocationPreview(requirements: { siteCode: "FRA", minCpuCores: 8, labels: ["nvme"] }) {
    considered
    eligible
    rejections { reason kind machines }
    candidates(first: 10) {
      edges { node { rank verdict machine { assetTag cpuCores memoryGib } rejections { reason wanted actual } } }
    }
  }
}`;

const reserve = `# 3. Reserve it. Run it twice: the same key
# never takes a second machine.
mutation Reserve($organizationId: ID!) {
  reserveMachine(input: {
    organizationId: $organizationId
    orderReference: "order-1001"
    idempotencyKey: "graphiql-1"
    requirements: { siteCode: "FRA", minCpuCores: 8, labels: ["nvme"] }
  }) {
    __typename
    ... on MachineReserved { reservation { id state expiresAt choice { assetTag explanation } } }
    ... on AlreadyReserved { reservation { id state expiresAt } }
    ... on Refusal { message nextAction retryAfterMs }
  }
}`;

const convert = `# 4. The customer has paid: convert the hold.
# Put the id from tab 3 into "Variables" below.
mutation Convert($reservationId: ID!) {
  convertReservation(input: { reservationId: $reservationId, serviceReference: "service-1001" }) {
    __typename
    ... on ReservationConverted { reservation { state } binding { id boundAt machine { assetTag availability } } }
    ... on Refusal { message nextAction retryAfterMs }
  }
}`;

const refused = `# 5. A refusal says which kind it is: BUY_MORE
# here, RETRY when somebody was faster.
mutation Refused($organizationId: ID!) {
  reserveMachine(input: {
    organizationId: $organizationId
    orderReference: "order-1002"
    idempotencyKey: "graphiql-2"
    requirements: { siteCode: "FRA", minCpuCores: 1000 }
  }) {
    __typename
    ... on NothingAvailable { considered rejections { reason kind machines } }
    ... on SomeoneWasFaster { eligible skipped lostRaces }
    ... on Refusal { message nextAction retryAfterMs }
  }
}`;

const publish = `# 6. Publish an app. Run it twice, quickly: the
# second is told what runs, and to follow it.
# ?simulate=fail (or slow, never) tries the rest.
mutation Publish($projectId: ID!) {
  publishApp(input: { projectId: $projectId, slug: "acme-shop", source: "https://git.example/shop" }) {
    __typename
    ... on PublishStarted { attempt deployment { id url state } }
    ... on PublishInProgress { attempt since deployment { id url state } }
    ... on Refusal { message nextAction retryAfterMs }
  }
}`;

const follow = `# 7. Follow it: the present state, then every
# change, until the attempt is over.
# Put the deployment's id into "Variables".
subscription Follow($deploymentId: ID!) {
  deploymentEvents(deploymentId: $deploymentId) {
    sequence
    message
    at
    deployment { state attempt liveAttempt url error }
  }
}`;

const organization = JSON.stringify(
  { organizationId: globalIdEncode("Organization", DEMO_ORGANIZATION) },
  null,
  2,
);
const headers = JSON.stringify({ Authorization: "Bearer PASTE-YOUR-TOKEN-HERE" }, null, 2);

/** GraphiQL opens with tabs that tell the product's story. The token is never in the page. */
export const graphiql: GraphiQLOptions = {
  title: "Holdfast",
  headers,
  defaultHeaders: headers,
  defaultEditorToolsVisibility: "headers",
  defaultTabs: [
    { query: inventory, headers },
    { query: preview, headers },
    { query: reserve, variables: organization, headers },
    {
      query: convert,
      variables: JSON.stringify({ reservationId: "paste the id from tab 3" }, null, 2),
      headers,
    },
    { query: refused, variables: organization, headers },
    {
      query: publish,
      variables: JSON.stringify({ projectId: globalIdEncode("Project", DEMO_PROJECT) }, null, 2),
      headers,
    },
    {
      query: follow,
      variables: JSON.stringify({ deploymentId: "paste the id from tab 6" }, null, 2),
      headers,
    },
  ],
};
