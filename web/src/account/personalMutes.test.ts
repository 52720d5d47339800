import { expect, test } from 'vitest'
import { notificationChoices, withNotification } from './personalMutes'

test('everything is told that nobody muted', () => {
  const lines = notificationChoices({ rules: ['xid'], by_settings: ['watch', 'gpu_hot'] })
  expect(lines.filter(({ isOn }) => !isOn).map(({ rule, isFixed }) => [rule, isFixed])).toEqual([['xid', false], ['watch', true], ['gpu_hot', true]])
  expect(lines.find(({ rule }) => rule === 'gpu_hot')?.text).toBe('gpu_hot')
})

test('one kind is muted and told again, and the others stay', () => {
  expect(withNotification({ rules: ['xid'], by_settings: [] }, 'watch', false)).toEqual(['xid', 'watch'])
  expect(withNotification({ rules: ['xid', 'watch'], by_settings: [] }, 'xid', true)).toEqual(['watch'])
})
