import { expect, it } from 'vitest'
import type { Me } from '../api/types'
import { loginsOf } from './me'

const somebody: Me = { kind: 'account', role: 'user', name: 'ann', logins: [], may_read: true, may_write: true, may_reserve: true, may_administer: false, can_log_in: true, needs_first_admin: false, has_proxy: false, has_jobs: false, has_password: true, providers: [], takes_passwords: true, provider: null, directory: null, note: null }

it('is who the hosts know, or the account itself', () => {
  expect(loginsOf({ ...somebody, logins: ['ann2', 'akoch'] })).toEqual(['ann2', 'akoch'])
  expect(loginsOf(somebody)).toEqual(['ann'])
})

it('is nobody for whoever has no name of their own', () => {
  expect(loginsOf(null)).toEqual([])
  expect(loginsOf({ ...somebody, kind: 'local', name: 'local admin' })).toEqual([])
})
