// A real OpenID Connect provider for tests: `node provider.mjs SETTINGS.json`. Any password is accepted.
// PUT /test/users/NAME replaces the claims of a user; without a body the user is disabled. PUT /test/secret replaces the
// client's secret.
import { readFileSync } from 'node:fs'
import Provider from 'oidc-provider'

const { port, client, users, jwks, refresh } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const known = new Map(Object.entries(users))

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      ...client,
    },
  ],
  claims: { openid: ['sub'], profile: ['preferred_username'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'profile', 'email', 'groups', 'offline_access'],
  cookies: { keys: ['only for tests'] },
  jwks,
  pkce: { required: () => true },
  features: { backchannelLogout: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  // Its own way refuses loopback, where the hub of a test is.
  fetch: (url, { dispatcher, ...options }) => fetch(url, options),
  issueRefreshToken: async () => refresh,
  ttl: { AccessToken: 600, IdToken: 600, RefreshToken: 3600, Session: 3600, Interaction: 600, Grant: 3600 },
  findAccount: (_, id) => (known.has(id) ? { accountId: id, claims: () => ({ sub: id, ...known.get(id) }) } : undefined),
})

provider.use(async (ctx, next) => {
  const [, name] = ctx.path.match(/^\/test\/(?:users\/(\w+)|secret)$/) ?? []
  if (!ctx.path.startsWith('/test/')) return next()
  const body = Buffer.concat(await ctx.req.toArray()).toString()
  if (name === undefined) (await provider.Client.find(client.client_id)).clientSecret = body
  else if (body === '') known.delete(name)
  else known.set(name, JSON.parse(body))
  ctx.status = 204
})
// Own routes go first.
provider.middleware.unshift(provider.middleware.pop())
provider.listen(port, '127.0.0.1', () => console.log('listening'))
