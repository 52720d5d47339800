import { describe, expect, test } from 'vitest'
import type { Me } from '../api/types'
import { canEnter, loginGate, identity, isKnown, loginRefusal, mayAdminister, passwordMistake, providerAddress, secretIn } from './access'

function me(changes: Partial<Me> = {}): Me {
  return { kind: 'nobody', role: 'nobody', name: '', logins: [], may_read: false, may_write: false, may_reserve: false, may_administer: false, can_log_in: true, needs_first_admin: false, has_proxy: false, has_jobs: false, has_password: true, providers: [], takes_passwords: true, provider: null, directory: null, note: null, ...changes }
}

const ada = me({ kind: 'account', role: 'admin', name: 'ada', may_read: true, may_write: true, may_reserve: true, may_administer: true })

describe('the door', () => {
  test.each([
    ['a stranger where accounts are', me(), null, 'log-in'],
    ['a stranger where anybody may look', me({ may_read: true }), null, null],
    ['a stranger where nobody has an account', me({ can_log_in: false, needs_first_admin: true }), null, 'no-accounts'],
    ['the link for the first admin', me({ can_log_in: false, needs_first_admin: true }), 's', 'first-admin'],
    ['the link where anybody may look', me({ may_read: true, can_log_in: false, needs_first_admin: true }), 's', 'first-admin'],
    ['the link when there are accounts by now', me(), 's', 'log-in'],
    ['an account', ada, null, null],
    ['a hub that does not say', null, 's', null],
  ] as const)('%s', (_, who, secret, door) => expect(loginGate(who, secret)).toBe(door))

  test('a secret is read from its own place only', () => {
    expect(secretIn('#first-admin=a-B_9')).toBe('a-B_9')
    expect(secretIn('#first-admin=')).toBeNull()
    expect(secretIn('#other=a')).toBeNull()
    expect(secretIn('#first-admin=<b>')).toBeNull()
  })
})

describe('who is here', () => {
  test('people with accounts are known; strangers and whoever sits at the hub are not', () => {
    expect([ada, me({ kind: 'proxy' }), me(), me({ kind: 'local' }), null].map(isKnown)).toEqual([true, true, false, false, false])
  })

  test('only strangers are offered to log in, and only where that can help', () => {
    const lonely = me({ can_log_in: false })
    expect([me(), lonely, { ...lonely, needs_first_admin: true }, ada, me({ kind: 'local' }), null].map(canEnter)).toEqual([true, false, true, false, false, false])
  })

  test('a hub that has not said who asks is asked, not guessed at', () => {
    expect([ada, me(), null].map(mayAdminister)).toEqual([true, false, true])
  })

  test('other rights make somebody else', () => {
    expect(identity(ada)).not.toBe(identity({ ...ada, role: 'viewer' }))
    expect(identity(ada)).toBe(identity({ ...ada, logins: ['ada'] }))
  })
})

describe('a refused login', () => {
  test('has the words of the hub', () => {
    expect(loginRefusal({ status: 401, message: 'the name or the password is wrong.' })).toEqual({ text: 'The name or the password is wrong.', wait: 0 })
  })

  test('tells its wait apart from its words', () => {
    const refusal = { status: 429, message: 'too many failed logins. Try again in 2 minutes.', retryAfter: 117 }
    expect(loginRefusal(refusal)).toEqual({ text: 'Too many failed logins.', wait: 117 })
  })

  test('says so where nothing answers, and never nothing', () => {
    expect(loginRefusal({ status: null, message: '' }).text).toBe('The hub is not responding. Try again later.')
    expect(loginRefusal({ status: 502, message: '' }).text).toBe('The hub refused the request (HTTP 502).')
  })
})

describe('a new password', () => {
  test.each([
    ['nine char', 'nine char', 'password'],
    ['ten chars!', 'ten chars?', 'again'],
    ['ten chars!', 'ten chars!', undefined],
    ['🔑🔑🔑🔑🔑', '🔑🔑🔑🔑🔑', 'password'],
  ])('%s, %s', (password, again, field) => expect(passwordMistake(password, again)?.field).toBe(field))
})

test('a login through a provider comes back to the place where it began', () => {
  expect(providerAddress('sso', { search: '?q=free', hash: '#/host/gpu01' })).toBe('api/v1/login/oidc/sso?next=%3Fq%3Dfree%23%2Fhost%2Fgpu01')
})
