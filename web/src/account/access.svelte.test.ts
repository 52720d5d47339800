import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { listTokens } from '../api/accounts'
import type { Me } from '../api/types'
import { Access } from './access.svelte'

const nobody: Me = { kind: 'nobody', role: 'nobody', name: '', logins: [], may_read: false, may_write: false, may_reserve: false, may_administer: false, can_log_in: true, needs_first_admin: false, has_proxy: false, has_jobs: false, has_password: true, providers: [], takes_passwords: true, provider: null, directory: null, note: null }
const ada: Me = { ...nobody, kind: 'account', role: 'admin', name: 'ada', may_read: true, may_write: true, may_reserve: true, may_administer: true }
const fresh: Me = { ...nobody, can_log_in: false, needs_first_admin: true }

/** What the hub answers to each question; a status alone is a refusal. */
let answers: Record<string, object | number>
let asked: string[]

beforeEach(() => {
  answers = {}
  asked = []
  vi.stubGlobal('fetch', async (url: string) => {
    asked.push(url)
    const answer = answers[url]
    if (answer === undefined) throw new TypeError('network')
    return typeof answer === 'number' ? Response.json({ error: { message: 'log in' } }, { status: answer }) : Response.json(answer)
  })
})

afterEach(() => vi.unstubAllGlobals())

async function begun(me: object | number | undefined, hash = ''): Promise<Access> {
  if (me !== undefined) answers['api/v1/me'] = me
  const access = new Access()
  access.start()
  access.readLink(hash)
  await vi.waitUntil(() => access.isAsked)
  return access
}

test('nobody is asked where the page itself says who is here', () => {
  const access = new Access()
  access.start(ada)
  expect([access.isAsked, access.me, asked]).toEqual([true, ada, []])
})

test('a hub that does not answer leaves the word to the stream', async () => {
  const access = await begun(undefined)
  expect([access.door, access.me]).toEqual([null, null])
})

test('a hub that does not even say who asks says why, and is asked once', async () => {
  const access = await begun(401)
  expect([access.door, access.words, asked.length]).toEqual([null, 'log in', 1])
})

test('whoever the hub knows no longer is told so', async () => {
  const access = await begun(ada)
  answers['api/v1/me'] = nobody
  answers['api/v1/tokens'] = 401
  await listTokens()
  await vi.waitUntil(() => access.door === 'log-in')
  expect(access.note).toBe('Your session has ended. Log in again.')
  access.enter(ada)
  expect([access.door, access.note]).toEqual([null, ''])
})

test('whoever comes for the first time is told of no session', async () => {
  const access = await begun(nobody)
  expect([access.door, access.note]).toEqual(['log-in', ''])
})

test('whoever logs out is not told that a session has ended', async () => {
  const access = await begun(ada)
  answers = { 'api/v1/me': nobody, 'api/v1/logout': { status: 'done' } }
  await access.logOut()
  expect([access.door, access.note]).toEqual(['log-in', ''])
})

test('a log-out that did not happen leaves everything as it is', async () => {
  const access = await begun(ada)
  answers = {}
  expect(await access.logOut()).toEqual({ refused: { status: null, message: '' } })
  expect(access.me).toEqual(ada)
})

test('a link makes the first admin, and is told to be used when there are accounts', async () => {
  expect((await begun(fresh, '#first-admin=abc')).door).toBe('first-admin')
  const late = await begun(nobody, '#first-admin=abc')
  expect([late.door, late.secret]).toEqual(['log-in', null])
  expect(late.note).toContain('this hub already has accounts')
})
