import { describe, expect, test } from 'vitest'
import type { Account, AuditEntry, Me, Token } from '../api/types'
import { NOW } from '../testing/samples'
import { accountLine, auditLine, expiresAt, tokenLine, tokenLines, tokenRoles } from './accounts'
import { moment } from '../ui/format'

const DAY = 86_400

function account(changes: Partial<Account> = {}): Account {
  return { id: 1, name: 'ada', role: 'admin', is_disabled: false, has_password: true, created_at: NOW - DAY, last_login_at: NOW, ...changes }
}

function token(changes: Partial<Token> = {}): Token {
  return {
    id: 1,
    name: 'ci',
    role: 'viewer',
    hosts: null,
    account_id: 1,
    account: 'ada',
    is_disabled: false,
    created_at: NOW - DAY,
    created_by: 'ada',
    expires_at: null,
    last_used_at: null,
    revoked_at: null,
    ...changes,
  }
}

describe('an account', () => {
  test('says what it may do and when it was last here', () => {
    expect(accountLine(account(), NOW)).toBe(`admin · last login ${moment(NOW, NOW)}`)
  })

  test('says what is unusual about it', () => {
    const line = accountLine(account({ role: 'user', last_login_at: null, has_password: false, is_disabled: true }), NOW)
    expect(line).toBe('user · never logged in · no password here (signs in through a provider or proxy) · disabled')
  })
})

describe('a token', () => {
  test('of an agent says for which hosts it is', () => {
    const agent = token({ role: 'agent', hosts: 'gpu*', account: null, account_id: null })
    expect(tokenLine(agent, NOW).what).toBe('agent · hosts gpu*')
    expect(tokenLine({ ...agent, hosts: null }, NOW).what).toBe('agent · any host')
  })

  test('never hides that it does not expire or was never used', () => {
    expect(tokenLine(token(), NOW).when).toContain('never expires · never used')
  })

  test.each([
    [{}, ''],
    [{ revoked_at: NOW }, `revoked ${moment(NOW, NOW)}`],
    [{ expires_at: NOW - 1 }, 'expired'],
    [{ expires_at: NOW + 1 }, ''],
    [{ is_disabled: true }, 'account disabled'],
  ])('%j', (changes, end) => expect(tokenLine(token(changes), NOW).end).toBe(end))

  test('that is worth something comes before those that are not, the newest first', () => {
    const lines = tokenLines([token({ id: 1 }), token({ id: 3, revoked_at: NOW }), token({ id: 2 })], NOW)
    expect(lines.map(({ id }) => id)).toEqual([2, 1, 3])
  })

  test('can be no more than whoever makes it', () => {
    const user = { may_administer: false } as Me
    expect(tokenRoles(user).map(([role]) => role)).toEqual(['viewer', 'user', 'calendar'])
    expect(tokenRoles({ ...user, may_administer: true }).map(([role]) => role)).toContain('agent')
  })

  test('lasts as long as was chosen', () => {
    expect(expiresAt(30, NOW)).toBe(NOW + 30 * DAY)
    expect(expiresAt(0, NOW)).toBeNull()
  })
})

describe('an entry of the audit log', () => {
  const entry: AuditEntry = { id: 7, at: NOW, who: 'ada', action: 'log in', subject: 'ada', outcome: 'done', address: '10.0.0.7', details: '' }

  test('does not name twice who did it', () => {
    expect(auditLine(entry, NOW)).toMatchObject({ what: 'ada: log in', outcome: '', more: 'from 10.0.0.7' })
  })

  test('says what was refused', () => {
    const refused = { ...entry, who: 'nobody', outcome: 'refused', details: 'too late' }
    expect(auditLine(refused, NOW)).toMatchObject({ what: 'nobody: log in ada', outcome: 'refused', more: 'too late · from 10.0.0.7' })
  })
})
