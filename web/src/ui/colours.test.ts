import { expect, test } from 'vitest'
import { orderColour, userColour, userColours, UNKNOWN_COLOUR } from './colours'

test('a person has the same colour everywhere', () => {
  expect(userColour('alice')).toBe(userColour('alice'))
  expect(userColour('alice')).not.toBe(userColour('bob'))
})

test('names that differ in one letter differ in colour', () => {
  const colours = new Set(['user1', 'user2', 'user3', 'user4', 'user5', 'user6'].map((user) => userColour(user)))
  expect(colours.size).toBeGreaterThan(4)
})

test('who is not known has the colour of the unknown', () => {
  expect(userColour(null)).toBe(UNKNOWN_COLOUR)
})

test('a hostile name is a colour like any other', () => {
  expect(userColour('red; } </style><script>')).toMatch(/^light-dark\(oklch\([\d. ]+\), oklch\([\d. ]+\)\)$/)
})

test('no two people in one chart look alike', () => {
  const users = ['ivan', 'ruth', 'aylin', 'lukas', 'mira', 'jonas', 'emil', 'noor', 'hanna', 'greta', 'carol', 'dan']
  const colours = userColours(users)
  expect(new Set(colours).size).toBe(users.length)
  expect(colours[0]).toBe(userColour('ivan'))
})

test('who is alone with a hue keeps it, whoever else is there', () => {
  const [alice, bob] = ['alice', 'bob'].map((user) => userColour(user))
  expect(userColours(['alice', null, 'bob'])).toEqual([alice, UNKNOWN_COLOUR, bob])
})

test('more people than hues still have a colour each', () => {
  const many = userColours(Array.from({ length: 40 }, (_, at) => `user${at}`))
  expect(many.every((colour) => colour.startsWith('light-dark('))).toBe(true)
})

test('nobody is red', () => {
  const hues = Array.from({ length: 200 }, (_, at) => Number(/ (\d+)\)/.exec(userColour(`user${at}`))?.[1]))
  expect(hues.filter((hue) => hue > 5 && hue < 45)).toEqual([])
})

test('neighbours in an order differ', () => {
  expect(new Set(Array.from({ length: 24 }, (_, at) => orderColour(at))).size).toBe(24)
})
