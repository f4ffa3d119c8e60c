FROM node:24-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc prisma.config.ts schema.prisma ./
RUN npm ci --include=dev
COPY . .
# The generated client stays; the tools that made it, and the embedded server, do not.
RUN npx prisma generate && npm prune --omit=dev --omit=optional --ignore-scripts

FROM node:24-slim
ENV NODE_ENV=production HOST=0.0.0.0
WORKDIR /app
COPY --from=build /app /app
USER node
EXPOSE 4000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["node", "-e", "fetch('http://127.0.0.1:' + (process.env.PORT || 4000) + '/ready').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# Needs DATABASE_URL. No npm in between, so that SIGTERM reaches the server.
ENTRYPOINT ["node", "src/main.ts"]
CMD ["serve"]
